"""Onefold's defaults against a strong baseline: train every configuration for one epoch, then the best three fully.

Cost is equal in training: the baseline trains `n` configurations for one epoch on all data and the best three to the
full budget; Onefold gets as many trials as its rungs allow for the same number of passes over the data. Space, full
budget, machine and seeds are the same; the baseline samples at random, as published. The reported accuracy is the test
accuracy of the final model. Onefold is behind if the mean difference is negative by more than its standard error.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

from claims import Claim, arguments, conclude, table

from onefold import Budget, ParallelismOptions, SearchOptions, Study
from onefold.search import planned_work
from onefold.training.splits import MIN_SAMPLES
from onefold.vocabulary.workload_reference import load

TOP_K = 3
SLOTS = 2


def trials_for(work: float, samples: int) -> int:
    """Return the most trials that Onefold's defaults allow for `work` passes over `samples` samples."""
    min_data = max(Budget.min_data, min(1.0, MIN_SAMPLES / samples))  # at least MIN_SAMPLES samples
    budget = Budget(min_data=min_data)
    trials = 1
    while planned_work("halving", budget, [trials + 1], slots=SLOTS) <= work:
        trials += 1
    return trials


def run(workload: str, seed: int, **options: Any) -> dict[str, float]:
    """Run a study; return the test accuracy of its best model, and its cost."""
    with tempfile.TemporaryDirectory() as home:
        result = Study(workload, seed=seed, home=home, **options, parallelism=ParallelismOptions(parallel=SLOTS)).run()
        cost = sum(trial.cost.time_s for trial in result.trials)
    return {"test": result.test["accuracy"], "training s": cost, "trials": len(result.trials)}


def main() -> None:
    options = arguments(__doc__)
    plan = (
        {"digits": (24, 3), "speech": (9, 2)}
        if options.quick
        else {"digits": (24, 6), "speech": (18, 3), "agnews-cnn": (12, 2)}
    )
    rows: list[dict[str, Any]] = []
    claims = []
    for workload, (trials, seeds) in plan.items():
        baseline = Budget(trials=trials, kind="epochs")
        samples = len(load(workload).data().train[-1])
        onefold_trials = trials_for(planned_work("top-k", baseline, [trials], top_k=TOP_K), samples)
        gains = []
        for seed in range(seeds):
            top_k = run(workload, seed, budget=baseline, search=SearchOptions("random", rungs="top-k", top_k=TOP_K))
            onefold = run(workload, seed, budget=Budget(trials=onefold_trials))
            gains.append(onefold["test"] - top_k["test"])
            rows += [
                {"workload": workload, "seed": seed, "tuner": "one epoch, top 3", **top_k},
                {"workload": workload, "seed": seed, "tuner": "onefold", **onefold},
            ]
            table(rows[-2:])
        mean = statistics.mean(gains)
        error = statistics.stdev(gains) / len(gains) ** 0.5
        measured = f"{mean:+.4f} ± {error:.4f} over {seeds} seeds"
        claims.append(
            Claim(f"{workload}: test accuracy minus that of one-epoch-top-3", "not behind", measured, mean + error >= 0)
        )
    table(rows)
    conclude("top_k", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
