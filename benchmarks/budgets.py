"""Time and energy to a target accuracy with the budget kinds `multi`, `epochs` and `data`, on two workloads.

For each workload and seed, the same study (same space, trials, eta and full budget) runs once with each kind of
budget. The target is the final accuracy of the `epochs` study minus half a percentage point. Time is read from the
study's clock when a rung first reaches the target on validation data; energy is the sum over all rungs until then. A
study that does not reach the target has no time. The plot shows the best accuracy so far over time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from claims import RESULTS, Claim, arguments, conclude, table

from onefold import Budget, ParallelismOptions, Study
from onefold.vocabulary.records import Trial

KINDS = ("multi", "epochs", "data")
MARGIN = 0.005
PARALLELISM = ParallelismOptions(parallel=2, threads=1)


def progress(workload: str, kind: Any, trials: int, seed: int) -> list[dict[str, float]]:
    """Return the best accuracy after each rung, with the time and the energy spent until then."""
    with tempfile.TemporaryDirectory() as home:
        budget = Budget(trials=trials, kind=kind)
        result = Study(workload, budget=budget, seed=seed, home=home, parallelism=PARALLELISM).run()
    return list(_steps(result.trials))


def _steps(trials: tuple[Trial, ...]) -> Any:
    rungs = sorted((rung for trial in trials for rung in trial.finished_rungs), key=lambda rung: rung.ended_s or 0.0)
    best = joules = 0.0
    for rung in rungs:
        joules += rung.measurement.energy.joules or 0.0
        best = max(best, rung.metrics["accuracy"])
        yield {"time_s": rung.ended_s or 0.0, "joules": joules, "accuracy": best}


def first_at(steps: list[dict[str, float]], accuracy: float) -> dict[str, float] | None:
    """Return the first step with this accuracy; None if there is none."""
    return next((step for step in steps if step["accuracy"] >= accuracy), None)


def plot(curves: dict[str, dict[str, list[list[dict[str, float]]]]], name: str) -> Path:
    """Plot the best accuracy so far over time, for each workload."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 3.4), layout="constrained")
    colors = {"multi": "#2a6f97", "epochs": "#d1495b", "data": "#8a8a8a"}
    for axis, (workload, kinds) in zip(axes, curves.items()):
        for kind, runs in kinds.items():
            for i, steps in enumerate(runs):
                times, values = [s["time_s"] for s in steps], [s["accuracy"] for s in steps]
                axis.step(times, values, where="post", color=colors[kind], label=kind if i == 0 else None)
        axis.set(title=workload, xlabel="seconds", ylabel="best validation accuracy so far")
        axis.legend(frameon=False)
    path = RESULTS / f"{name}.svg"
    figure.savefig(path)
    return path


def main() -> None:
    options = arguments(__doc__)
    workloads = {"digits": 18, "speech": 9} if options.quick else {"agnews-cnn": 18, "imdb-cnn": 18}
    seeds = [0] if options.quick else [0, 1]
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[Any]]] = {}
    for workload, trials in workloads.items():
        for seed in seeds:
            runs = {kind: progress(workload, kind, trials, seed) for kind in KINDS}
            target = runs["epochs"][-1]["accuracy"] - MARGIN
            for kind, steps in runs.items():
                curves.setdefault(workload, {}).setdefault(kind, []).append(steps)
                at_target = first_at(steps, target)
                rows.append(
                    {
                        "workload": workload, "seed": seed, "budget": kind, "target accuracy": target,
                        "time s": at_target["time_s"] if at_target else None,
                        "energy J (modelled)": at_target["joules"] if at_target else None,
                        "final accuracy": steps[-1]["accuracy"], "whole study s": steps[-1]["time_s"],
                    }
                )  # fmt: skip
            table(rows[-len(KINDS) :])
    table(rows)
    name = "budgets-quick" if options.quick else "budgets"
    plot(curves, name)
    claims = []
    for workload in workloads:
        for cost in ("time s", "energy J (modelled)"):
            for baseline in ("epochs", "data"):
                claims.append(_claim(rows, workload, cost, baseline))
    conclude("budgets", claims, {"rows": rows, "plot": f"{name}.svg"}, quick=options.quick)


def _claim(rows: list[dict[str, Any]], workload: str, cost: str, baseline: str) -> Claim:
    names = {"time s": "time", "energy J (modelled)": "energy (modelled)"}
    multi = [row[cost] for row in rows if row["workload"] == workload and row["budget"] == "multi"]
    others = [row[cost] for row in rows if row["workload"] == workload and row["budget"] == baseline]
    label = f"{workload}: {names[cost]} to the target accuracy, multi relative to {baseline}"
    if any(value is None for value in multi):
        return Claim(label, "< 1x", "multi misses the target", False)
    ratios = [value / other for value, other in zip(multi, others) if other is not None]
    if not ratios:
        return Claim(label, "< 1x", f"{baseline} misses the target", True)
    return Claim(label, "< 1x", f"{median(ratios):.2f}x", median(ratios) < 1)


if __name__ == "__main__":
    main()
