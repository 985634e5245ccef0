"""No text of a study, a file or an error reaches the terminal as a command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text
from shell import onefold

from onefold import Choice, Objective, Space
from onefold.cli.console import SafeConsole, printable
from onefold.cli.display import LiveDisplay
from small_studies import small_study

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x7f"
HARMFUL = set("\x1b\x07\x9b\u202e\r\x7f\x08")


def evil(config: Any) -> dict[str, float]:
    if config.x == 1:
        raise RuntimeError(ESCAPE)
    return {ESCAPE: 1.0, "loss": 0.5}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    objective = Objective(minimize=ESCAPE)
    small_study(evil, tmp_path / "home", space=Space(x=Choice(1, 2, ESCAPE)), objective=objective, name="evil").run()
    return tmp_path


@pytest.mark.parametrize(
    "words", [["show", "evil"], ["list"], ["report", "evil", "--text"], ["show", "evil", "--json"]]
)
def test_commands_print_no_control_character(home: Path, words: list[str]) -> None:
    printed = onefold(home, *words)
    assert printed.returncode == 0, printed.stderr
    assert "evil" in printed.stdout
    assert not HARMFUL & {*printed.stdout, *printed.stderr}
    if "--json" in words:
        assert json.loads(printed.stdout)["study"]["objective"]


def test_errors_print_no_control_character(tmp_path: Path) -> None:
    printed = onefold(tmp_path, "show", ESCAPE)
    assert printed.returncode == 2
    assert not HARMFUL & set(printed.stderr)


def test_what_a_terminal_shows_is_kept_and_styled() -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, color_system="standard", width=80, markup=False)
    console.print(Text("ünï — 漢字 ≈ µs", style="bold"))
    table = Table("name")
    table.add_row(f"a{ESCAPE}b")
    console.print(table)
    console.out(f"plain{ESCAPE}")
    with LiveDisplay(console, Objective(minimize="loss")):
        pass
    written = stream.getvalue()
    assert "\x1b[1münï — 漢字 ≈ µs\x1b[0m" in written
    assert "owned" in written
    assert "\x1b]0" not in written
    assert "\x1b[2J" not in written
    assert not (HARMFUL - {"\x1b", "\r"}) & set(written)


def test_line_breaks_and_tabs_are_kept() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert "\x1b" not in printable("\x1b[31m")
    assert printable("\udc80") == "\N{REPLACEMENT CHARACTER}"
