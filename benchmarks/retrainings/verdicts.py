"""The tables and the claims of the cases that are done."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from claims import Claim

from retrainings.case_run import REFUSED
from retrainings.cases import COMPARATORS, FIXED, NEW_SAMPLES, ONEFOLD, STRATEGIES

CASES, QUICK_CASES = 200, 4
MIN_GAIN_ABOVE_MEAN = 5.0  # points
TOLERANCE = 0.01  # of the metric on the reference set, as documented
STANDARD_ERRORS = 3.0  # by which a difference may be chance
REFERENCE_SAMPLES = 250  # by which a retraining compares models: half of the reference set
VALIDATION_SHARE = 0.2  # of the new data
Row = dict[str, Any]


def change(row: Row, data: str) -> float:
    """Return the change of the accuracy on test images; 0 if nothing was retrained."""
    if data not in row:
        return 0.0
    _, won, lost = row[data]
    return float((won - lost) / row["tested"])


def worst_allowed(row: Row, data: str) -> float:
    """Return the change below which a model is worse.

    That is the tolerance of the promise minus the sampling error of the difference, both on the test images and on the
    samples by which the retraining judged.
    """
    _, won, lost = row[data]
    count = row["tested"]
    variance = (won + lost) / count - ((won - lost) / count) ** 2
    samples = REFERENCE_SAMPLES if data == "old" else VALIDATION_SHARE * NEW_SAMPLES[row["model"]]
    error = math.sqrt(variance * (1 / count + 1 / samples))
    return -(TOLERANCE if data == "old" else 0.0) - STANDARD_ERRORS * error


def is_worse(row: Row, data: str) -> bool:
    """Return whether the retrained model is worse on these test images."""
    return data in row and bool(change(row, data) < worst_allowed(row, data))


def is_true_refusal(row: Row) -> bool:
    """Return whether a refusal says that more memory or time is needed than there is."""
    suggested = re.search(r"set window to (\d+)s", row["said"])
    if suggested is not None:
        return int(suggested[1]) > row["window_s"]
    return row.get("least_mb") is not None and row["least_mb"] > row["memory_mb"]


def complete_comparisons(rows: Sequence[Row], strategies: Sequence[str] = STRATEGIES) -> list[Row]:
    """Return the rows of the comparison for whose model and domain all strategies are done."""
    rows = [row for row in rows if row["is_compared"]]
    groups: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["domain"]), set()).add(row["strategy"])
    return [row for row in rows if groups[row["model"], row["domain"]] >= set(strategies)]


def strategy_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row of figures for each strategy."""
    return [_figures({"strategy": name}, [row for row in rows if row["strategy"] == name]) for name in _names(rows)]


def model_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row of figures for each model and strategy."""
    models = dict.fromkeys(row["model"] for row in rows)
    return [
        _figures(
            {"model": model, "strategy": name},
            [row for row in rows if row["strategy"] == name and row["model"] == model],
        )
        for model in models
        for name in _names(rows)
    ]


def _names(rows: Sequence[Row]) -> list[str]:
    strategies = {row["strategy"] for row in rows}
    return [name for name in STRATEGIES if name in strategies]


def _figures(names: Row, rows: Sequence[Row]) -> Row:
    done = [row for row in rows if row["status"] == 0]
    return {
        **names, "cases": len(rows), "refused": sum(row["status"] == REFUSED for row in rows),
        "failed": sum(row["status"] not in (0, REFUSED) for row in rows), "gain": 100 * _mean(rows, "new"),
        "old": 100 * _mean(rows, "old"), "over": len(_over(rows)), "late": len(_late(rows)),
        "peak MB": _average(row["peak_mb"] for row in done),
        "first update s": _mean_time(done, "first_update_s"), "first window s": _mean_time(done, "first_window_s"),
        "updates": _average(row["updates"] for row in done), "plans": _average(row["plans"] for row in done),
    }  # fmt: skip


def _mean(rows: Sequence[Row], data: str) -> float:
    return _average(change(row, data) for row in rows) or 0.0


def _mean_time(rows: Iterable[Row], name: str) -> float | None:
    return _average(row[name] for row in rows if row[name] is not None)


def _average(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.mean(numbers) if numbers else None


def _over(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["peak_mb"] > row["memory_mb"]]


def _late(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["wall_s"] > row["window_s"]]


def claims_of(rows: Sequence[Row], complete: Sequence[Row], *, quick: bool) -> list[Claim]:
    """Return the claims; `complete` are the rows of the comparison that count."""
    return [*_promises([row for row in rows if row["strategy"] == ONEFOLD], quick=quick), *_gains(complete)]


def _promises(rows: Sequence[Row], *, quick: bool) -> list[Claim]:
    bar = QUICK_CASES if quick else CASES
    refused = [row for row in rows if row["status"] == REFUSED]
    failed = [row for row in rows if row["status"] not in (0, REFUSED)]
    done = [row for row in rows if row["status"] == 0]
    over, late = _over(rows), _late(rows)
    untrue = [row for row in refused if not is_true_refusal(row)]
    share = max((row["peak_mb"] / row["memory_mb"] for row in rows), default=0.0)
    latest = max((row["wall_s"] - row["window_s"] for row in rows), default=0.0)
    busy = sum(row["is_busy"] for row in rows)
    return [
        Claim("retrainings by onefold", f">= {bar}", f"{len(rows)} ({busy} beside a neighbor, {len(refused)} refused)",
              len(rows) >= bar),
        Claim("… over the memory limit (peak of all its processes)", "0", f"{len(over)} (at most {share:.1%} of it)",
              not over),
        Claim("… late (whole life of the command)", "0", f"{len(late)} (latest {latest:+.2f} s)", not late),
        Claim("… killed or failed", "0", str(len(failed)), not failed),
        *(_not_worse(done, data, images) for data, images in (("old", "clean images"), ("new", "new data"))),
        Claim("… refused without need", "0", f"{len(untrue)} of {len(refused)} refusals", not untrue),
    ]  # fmt: skip


def _not_worse(rows: Sequence[Row], data: str, images: str) -> Claim:
    worse = [row for row in rows if is_worse(row, data)]
    least = min((change(row, data) for row in rows), default=0.0)
    allowed = _average(worst_allowed(row, data) for row in rows) or 0.0
    fell = sum(change(row, data) < 0 for row in rows)
    measured = (
        f"{len(worse)} (on average {100 * _mean(rows, data):+.1f} points, at least {100 * least:+.1f}; {fell} fell at "
        f"all, within an error of {-100 * allowed:.1f} on average)"
    )
    return Claim(f"… worse on {images}", "0", measured, not worse)


def _gains(rows: Sequence[Row]) -> list[Claim]:
    groups = len({(row["model"], row["domain"]) for row in rows})
    gains = {name: 100 * _mean([row for row in rows if row["strategy"] == name], "new") for name in _names(rows)}
    comparators = [gains[name] for name in COMPARATORS if name in gains]
    if not rows or not comparators or ONEFOLD not in gains:
        return [Claim("mean accuracy gain above the mean of the comparators", f">= {MIN_GAIN_ABOVE_MEAN:g} points",
                      "no group of the comparison is complete", False)]  # fmt: skip
    onefold, mean = gains[ONEFOLD], statistics.mean(comparators)
    others = ", ".join(f"{name} {gains[name]:.1f}" for name in COMPARATORS if name in gains)
    starts = {
        is_onefold: _average(
            row["first_update_s"]
            for row in rows
            if row.get("first_update_s") is not None
            and (row["strategy"] == ONEFOLD if is_onefold else row["strategy"] in COMPARATORS)
        )
        or 0.0
        for is_onefold in (True, False)
    }
    return [
        Claim(f"mean accuracy gain above the mean of the comparators, {groups} models and domains",
              f">= {MIN_GAIN_ABOVE_MEAN:g} points",
              f"{onefold - mean:.1f} ({onefold:.1f} against {mean:.1f}: {others})",
              onefold - mean >= MIN_GAIN_ABOVE_MEAN),
        Claim("… above one fixed plan", "> 0 points", f"{onefold - gains[FIXED]:.1f} ({gains[FIXED]:.1f})",
              onefold > gains[FIXED]),
        Claim("time until the first update", "<= the comparators'",
              f"{starts[True]:.1f} s against {starts[False]:.1f} s", starts[True] <= starts[False]),
    ]  # fmt: skip
