"""Studies that tune knobs within trials, against default knobs and against knobs as hyperparameters.

Two workloads with the same budget and seeds; the tuning time is that of the whole study. Knobs keep the precision, or
may reduce it while the loss does not rise. Then twelve small jobs arrive at one machine with exponential interarrival
times and wait in the queue; four fifths of them are similar to earlier jobs. The response time is from submission to
result.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from claims import Claim, Stopwatch, arguments, conclude, median, table

from onefold.vocabulary.knobs import KnobOptions

TUNING_TIME = {"fixed": 0.82, "as-hyperparameters": 0.70}  # acceptance bars, relative to the baseline
RESPONSE_TIME = 0.70
WORKLOADS = {"fashion": (9, 6), "newsgroups-cnn": (9, 6)}  # trials, epochs
STRATEGIES = {  # by name: the knob options
    "onefold": KnobOptions("on"),
    "onefold, reduced precision": KnobOptions("on", reduced=True),
    "fixed": KnobOptions("off"),
    "as-hyperparameters": KnobOptions("off"),
}
SEEN = ("fashion", "newsgroups-cnn")
UNSEEN = "speech"
JOBS, MEAN_INTERARRIVAL_S = 12, 4.0


def study(workload: str, strategy: str, trials: int, epochs: int, seed: int, home: str, trained: bool = False) -> Any:
    """Return the study of a strategy; with `trained`, a single training of the default configuration."""
    from onefold import Budget, Study
    from onefold.study.api import single_trial

    knobs = STRATEGIES[strategy]
    if trained:
        return single_trial(workload, epochs=epochs, knobs=knobs, seed=seed, home=home)
    budget = Budget(trials=trials, max_epochs=epochs)
    if strategy == "as-hyperparameters":
        return _as_hyperparameters(workload, budget, seed, home)
    return Study(workload, budget=budget, seed=seed, home=home, knobs=knobs)


def _as_hyperparameters(workload: str, budget: Any, seed: int, home: str) -> Any:
    """Return the study that other tuners would run: knobs in the space, accuracy per second as the objective."""
    from onefold import Choice, Objective, Space, Study
    from onefold.study.tunable import Tunable

    tunable = Tunable(workload)
    # Knobs that every trial can change: its threads belong to its worker, whose allocator keeps freed memory.
    knobs = {"knob_memory_format": Choice("contiguous", "channels last"), "knob_update": Choice("loop", "fused")}
    goal = tunable.objective.goals[0]
    objective = Objective(maximize=f"({goal.metric}) / train_time_s", require=tunable.objective.require)
    space = Space(**tunable.space.groups, knobs=knobs)
    return Study(workload, space, objective=objective, budget=budget, seed=seed, home=home, knobs="off")


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run a study in a new process."""
    with Stopwatch() as watch:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(order)], stdout=subprocess.PIPE, text=True, check=True
        )
    return {"tuning s": watch.seconds, **json.loads(done.stdout.strip().splitlines()[-1])}


def compare(seeds: list[int], shrink: int) -> list[dict[str, Any]]:
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as home:  # each seed starts without remembered knobs
            for workload, (trials, epochs) in WORKLOADS.items():
                for strategy in STRATEGIES:
                    order = {"workload": workload, "strategy": strategy, "trials": trials // shrink, "seed": seed}
                    result = run({**order, "epochs": max(2, epochs // shrink), "home": home})
                    rows.append({"workload": workload, "strategy": strategy, "seed": seed, **result})
                    table(rows[-1:])
    return rows


def arrivals(jobs: int, mean_interarrival_s: float, epochs: int) -> list[dict[str, Any]]:
    """Measure the mean response time of arriving jobs, with and without tuned knobs."""
    rng = random.Random(0)
    unseen = round(jobs * 0.2)
    kinds = [UNSEEN] * unseen + [SEEN[i % len(SEEN)] for i in range(jobs - unseen)]
    rng.shuffle(kinds)
    gaps = [rng.expovariate(1 / mean_interarrival_s) for _ in kinds]
    rows = []
    for strategy in ("fixed", "onefold"):
        with tempfile.TemporaryDirectory() as home:
            if strategy == "onefold":
                for workload in SEEN:  # earlier jobs
                    study(workload, strategy, 1, epochs, 9, home, trained=True).run()
            responses = _response_times(kinds, gaps, strategy, epochs, home)
        rows.append({"strategy": strategy, "jobs": len(responses), "mean response s": sum(responses) / len(responses)})
        table(rows[-1:])
    return rows


def _response_times(kinds: list[str], gaps: list[float], strategy: str, epochs: int, home: str) -> list[float]:
    from onefold.study import Home
    from onefold.study.queue import Queue

    queue = Queue(Home(home))

    def arrive() -> None:
        for seed, (kind, gap) in enumerate(zip(kinds, gaps)):
            time.sleep(gap)
            queue.submit(study(kind, strategy, 1, epochs, seed, home, trained=True))

    arrival = threading.Thread(target=arrive)
    arrival.start()
    while arrival.is_alive() or queue.waiting():
        if queue.waiting():
            # In a new process, as `onefold submit` would start it.
            subprocess.run(
                [sys.executable, "-m", "onefold.cli", "queue", "run", "--home", home],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        time.sleep(0.05)
    return [job.response_s for job in queue.jobs() if job.response_s is not None]


def judge(rows: list[dict[str, Any]], responses: list[dict[str, Any]]) -> list[Claim]:
    claims = []
    for strategy in ("onefold", "onefold, reduced precision"):
        for baseline, bar in TUNING_TIME.items():
            ours, theirs = (
                {(row["workload"], row["seed"]): row for row in rows if row["strategy"] == name}
                for name in (strategy, baseline)
            )
            worst = max(
                median(ours[key]["tuning s"] / theirs[key]["tuning s"] for key in ours if key[0] == workload)
                for workload in WORKLOADS
            )
            lost = sum(theirs[key]["test"] - ours[key]["test"] for key in ours) / len(ours)
            against = f"{strategy} against {baseline}"
            claims.append(Claim(f"{against}: tuning time", f"<= {bar}x", f"{worst:.2f}x", worst <= bar))
            claims.append(Claim(f"{against}: loss of accuracy", "<= 0", f"{lost:+.4f}", lost <= 0))
    ratio = responses[1]["mean response s"] / responses[0]["mean response s"]
    claims.append(
        Claim("mean response time against fixed", f"<= {RESPONSE_TIME}x", f"{ratio:.2f}x", ratio <= RESPONSE_TIME)
    )
    return claims


def main() -> None:
    if "--one" in sys.argv:
        result = study(**json.loads(sys.argv[-1])).run()
        print(json.dumps({"test": result.test["accuracy"], "folder": Path(result.folder).name}))
        return
    options = arguments(__doc__)
    rows = compare([0], 2) if options.quick else compare([0, 1], 1)
    responses = arrivals(4, 2.0, 1) if options.quick else arrivals(JOBS, MEAN_INTERARRIVAL_S, 3)
    conclude("knob_strategies", judge(rows, responses), [*rows, *responses], quick=options.quick)


if __name__ == "__main__":
    main()
