"""`onefold agent`: write the agent of a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.console import out
from onefold.device.agent_archive import pack_agent

app = typer.Typer(help="Measure on a real board: the program that runs there.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure on a real board: the program that runs there."""


@app.command()
def pack(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write")] = Path("onefold-agent.pyz"),
) -> None:
    """Write the agent as one file, which needs Python 3.9 or later with numpy and onnxruntime."""
    pack_agent(output)
    out.print(f"{output}: copy it to the board, and run there: python3 {output.name} serve", soft_wrap=True)
