"""Untrusted model folders: every entry point with every attack; no code runs, nothing outside is read or changed.

The cases are those of `tests/hostile`: pickles, native libraries, Python code that the model card names, symbolic
links, pipes, paths that lead out of the folder, bombs (archives, headers and JSON) and hostile ONNX files, each given
to every function that opens a model folder. Code of an attack would write a marker. For each attack, a control does
what a careless reader would, and must succeed: the marker is written, the file outside is read, the reader would block.
With `trust=True` the same code runs. `--quick` leaves out the cases that take seconds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from claims import Claim, arguments, conclude, table

TESTS = Path(__file__).parents[1] / "tests" / "hostile"
CASE, CONTROL = "test_nothing_of_a_stranger_runs", "test_an_attack_succeeds_with_a_careless_reader"
WITHSTOOD = ("refused", "without effect")


class Collector:
    """A pytest plugin that keeps the outcome of each test."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.reports.append(report)

    def of(self, test: str) -> list[pytest.TestReport]:
        """Return the reports of a test function."""
        return [report for report in self.reports if f"::{test}[" in report.nodeid]


def rows_of(cases: list[pytest.TestReport]) -> list[dict[str, Any]]:
    """Return one row per entry point: how many cases of each kind of attack were refused, of all."""
    kinds = sorted({str(dict(case.user_properties).get("kind")) for case in cases})
    counts: Counter[tuple[str, str, str]] = Counter()
    for case in cases:
        properties = dict(case.user_properties)
        entry = case.nodeid.partition("[")[2].rpartition("-")[0]
        outcome = str(properties.get("outcome")) if case.passed else "failed"
        counts[entry, str(properties.get("kind")), outcome] += 1
    rows = []
    for entry in dict.fromkeys(entry for entry, _, _ in counts):
        row: dict[str, Any] = {"entry point": entry}
        for kind in kinds:
            outcomes = {outcome: counts[entry, kind, outcome] for outcome in (*WITHSTOOD, "failed")}
            row[kind] = f"{outcomes['refused']} of {sum(outcomes.values())}"
            row["failed"] = row.get("failed", 0) + outcomes["failed"]
        rows.append(row)
    return rows


def main() -> None:
    options = arguments(__doc__)
    collector = Collector()
    marks = "not slow" if options.quick else "slow or not slow"
    pytest.main([str(TESTS), "-q", "--no-header", "-m", marks, "-p", "no:cacheprovider"], plugins=[collector])
    cases, controls = collector.of(CASE), collector.of(CONTROL)
    rows = rows_of(cases)
    print("Refused cases; the others had no effect on that entry point:")
    table(rows)
    failed = sum(not case.passed for case in cases)
    effective = sum(control.passed for control in controls)
    claims = [
        Claim("cases: entry points x attacks", ">= 200", f"{len(cases)}", len(cases) >= 200),
        Claim("cases in which code ran, or a file outside was read or changed", "0", str(failed), failed == 0),
        Claim(
            "attacks that succeed with a careless reader",
            f"all {len(controls)}",
            str(effective),
            effective == len(controls) > 0,
        ),
    ]
    conclude("hostile", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
