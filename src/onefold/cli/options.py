"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of studies and devices (default: $ONEFOLD_HOME or the user's data folder)"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for machines")]
