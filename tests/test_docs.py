"""Documents are true: programs run, commands parse, budgets and benchmark figures match, links resolve.

A fenced python block below the mark `<!-- complete -->` is a program, or continues the one before it on the same page.
Every workload that a page defines is tuned briefly.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
import typer

from onefold import Budget, Workload, tune
from onefold.cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
BUDGETS = next(DOCS.rglob("search-and-budgets.md"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^<!-- complete -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?onefold (.+)$")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[str]:
    """Return the programs of a page, each padded to start at its line of the page."""
    text = page.read_text()
    return ["\n" * text[: block.start(1)].count("\n") + block[1] for block in PROGRAM.finditer(text)]


def commands(page: Path) -> Iterator[str]:
    """Yield what follows `onefold` in shell blocks and in inline code."""
    text = page.read_text()
    lines = [line for block in FENCED.finditer(text) if block[1] in ("sh", "console") for line in block[2].splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    for line in lines:
        if match := COMMAND.match(line):
            yield match[1]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and mkdocs derive them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)], ids=name_of)
def test_programs_run(
    page: Path, home: Path, tmp_path: Path, inline_engine: None, few_digits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    main = ModuleType("__main__")
    main.__file__ = f"{page.stem}.py"  # does not exist, so workloads are pickled by value
    monkeypatch.setitem(sys.modules, "__main__", main)
    for program in programs(page):
        exec(compile(program, page, "exec"), vars(main))
    tuned = set(re.findall(r"tune\((\w+)\(\)", "".join(programs(page))))
    for name, workload in list(vars(main).items()):
        if isinstance(workload, type) and issubclass(workload, Workload) and name not in {*tuned, "Workload"}:
            tune(workload(), trials=1, max_epochs=1, knobs="off")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page: Path) -> None:
    group = typer.main.get_command(app)
    for line in commands(page):
        name, *words = shlex.split(line, comments=True)
        assert name in group.commands, f"there is no command {name!r}, as in: onefold {line}"
        try:
            if words and words != ["--help"]:  # a command without arguments is only mentioned
                group.commands[name].make_context(name, words)
        except Exception as error:  # noqa: BLE001 - whatever the parser complains about
            pytest.fail(f"onefold {line}: {error}")


def table(page: Path, *titles: str) -> list[list[str]]:
    """Return the rows of the table with these column titles."""
    _, result, below = page.read_text().partition(f"| {' | '.join(titles)} |\n".replace("|  |", "| |"))
    assert result, f"{name_of(page)} has no table {titles}"
    rows = below.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def written(value: object) -> str:
    """Return a share as a fraction and anything else as text."""
    return str(Fraction(value).limit_denominator(100)) if isinstance(value, float) else str(value)


def test_levels_match_the_table() -> None:
    parser = typer.main.get_command(app).commands["tune"]
    for options, *cells in table(BUDGETS, "budget", "levels", "epochs", "data"):
        words = shlex.split(options.strip("`")) if options.startswith("`") else []
        given = parser.make_context("tune", ["digits", *words]).params
        plain = {name: given[name] for name in ("min_epochs", "max_epochs", "min_data", "eta", "growth")}
        budget = Budget(kind=given["budget"], **plain)
        grants = [budget.grant(level, visit) for visit, level in enumerate(budget.levels(), start=1)]
        columns = zip(*((grant.level, grant.epochs, grant.data) for grant in grants))
        assert cells == [", ".join(map(written, column)) for column in columns], options


def test_budget_defaults_match_the_table() -> None:
    for _, fields, defaults, _ in table(BUDGETS, "option", "in `Budget`", "default", "meaning"):
        names = re.findall(r"`(\w+)`", fields)
        assert defaults.split(", ") == [written(getattr(Budget(), name)) for name in names], fields


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)", FENCED.sub("", page.read_text())):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{name_of(page)} links to {target}#{anchor}"


def test_readme_figures_are_claims_that_hold_by_the_present_method() -> None:
    method_version = runpy.run_path(str(ROOT / "benchmarks" / "claims" / "page.py"))["method_version"]
    for _, figure, name in table(ROOT / "README.md", "", "Onefold", "benchmark"):
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name.strip('`')}.json").read_text())
        assert any(figure in claim["measured"] and claim["holds"] for claim in result["claims"]), (name, figure)
        assert result.get("method", 1) == method_version(name.strip("`")), name


def test_benchmark_page_matches_the_results() -> None:
    page = runpy.run_path(str(ROOT / "benchmarks" / "claims" / "page.py"))
    shown, current = (
        [line for line in text.splitlines() if line.startswith(("|", "### ", "Measured"))]
        for text in (page["PAGE"].read_text(), page["render"]())
    )
    assert shown == current, "run: python benchmarks/claims/page.py"
