"""Studies with knobs tuned inside their trials, against fixed knobs and against knobs as hyperparameters.

Two workloads, the same budget and seed. Tuning time is from nothing to the result. Knobs leave the arithmetic as it is,
or may reduce its precision where the loss does not rise. Then twelve small jobs arrive at one
machine, as they come (exponential gaps), four fifths of them like jobs that were seen before; they wait their turn in
the queue. Response time is from submission to result.
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

AGAINST = {"fixed": 0.82, "as-hyperparameters": 0.70}  # of their tuning time
RESPONSE = 0.70
WORKLOADS = {"fashion": (9, 6), "newsgroups-cnn": (9, 6)}  # trials, epochs
STRATEGIES = {  # by name: the knob options
    "onefold": KnobOptions("on"),
    "onefold, less precise": KnobOptions("on", reduced=True),
    "fixed": KnobOptions("off"),
    "as-hyperparameters": KnobOptions("off"),
}
SEEN = ("fashion", "newsgroups-cnn")
UNSEEN = "speech"
JOBS, GAP_S = 12, 4.0


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


def one(order: dict[str, Any]) -> dict[str, Any]:
    """One study in a process of its own."""
    with Stopwatch() as watch:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(order)], stdout=subprocess.PIPE, text=True, check=True
        )
    return {"tuning s": watch.seconds, **json.loads(done.stdout.strip().splitlines()[-1])}


def compare(seeds: list[int], shrink: int) -> list[dict[str, Any]]:
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as home:  # each seed begins with nothing remembered
            for workload, (trials, epochs) in WORKLOADS.items():
                for strategy in STRATEGIES:
                    order = {"workload": workload, "strategy": strategy, "trials": trials // shrink, "seed": seed}
                    found = one({**order, "epochs": max(2, epochs // shrink), "home": home})
                    rows.append({"workload": workload, "strategy": strategy, "seed": seed, **found})
                    table(rows[-1:])
    return rows


def arrivals(jobs: int, gap_s: float, epochs: int) -> list[dict[str, Any]]:
    """The mean response time of jobs that arrive as they come, with and without knobs."""
    rng = random.Random(0)
    unseen = round(jobs * 0.2)
    kinds = [UNSEEN] * unseen + [SEEN[i % len(SEEN)] for i in range(jobs - unseen)]
    rng.shuffle(kinds)
    gaps = [rng.expovariate(1 / gap_s) for _ in kinds]
    rows = []
    for strategy in ("fixed", "onefold"):
        with tempfile.TemporaryDirectory() as home:
            if strategy == "onefold":
                for workload in SEEN:  # what the machine has learned before
                    study(workload, strategy, 1, epochs, 9, home, trained=True).run()
            responses = _served(kinds, gaps, strategy, epochs, home)
        rows.append({"strategy": strategy, "jobs": len(responses), "mean response s": sum(responses) / len(responses)})
        table(rows[-1:])
    return rows


def _served(kinds: list[str], gaps: list[float], strategy: str, epochs: int, home: str) -> list[float]:
    from onefold.study import Home
    from onefold.study.queue import Queue

    queue = Queue(Home(home))

    def arrive() -> None:
        for seed, (kind, gap) in enumerate(zip(kinds, gaps)):
            time.sleep(gap)
            queue.submit(study(kind, strategy, 1, epochs, seed, home, trained=True))

    source = threading.Thread(target=arrive)
    source.start()
    while source.is_alive() or queue.waiting():
        if queue.waiting():
            # Each study in a process of its own, as a server of the queue would have been started.
            subprocess.run(
                [sys.executable, "-m", "onefold.cli", "queue", "run", "--home", home],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        time.sleep(0.05)
    return [one.response_s for one in queue.submissions() if one.response_s is not None]


def judge(rows: list[dict[str, Any]], served: list[dict[str, Any]]) -> list[Claim]:
    claims = []
    for way in ("onefold", "onefold, less precise"):
        for other, bar in AGAINST.items():
            mine, theirs = ({(r["workload"], r["seed"]): r for r in rows if r["strategy"] == s} for s in (way, other))
            worst = max(
                median(mine[key]["tuning s"] / theirs[key]["tuning s"] for key in mine if key[0] == workload)
                for workload in WORKLOADS
            )
            lost = sum(theirs[key]["test"] - mine[key]["test"] for key in mine) / len(mine)
            claims.append(Claim(f"{way}: tuning time against {other}", f"<= {bar}x", f"{worst:.2f}x", worst <= bar))
            claims.append(Claim(f"{way}: accuracy lost against {other}", "<= 0", f"{lost:+.4f}", lost <= 0))
    response = served[1]["mean response s"] / served[0]["mean response s"]
    claims.append(Claim("mean response against fixed", f"<= {RESPONSE}x", f"{response:.2f}x", response <= RESPONSE))
    return claims


def main() -> None:
    if "--one" in sys.argv:
        result = study(**json.loads(sys.argv[-1])).run()
        print(json.dumps({"test": result.test["accuracy"], "folder": Path(result.folder).name}))
        return
    options = arguments(__doc__)
    rows = compare([0], 2) if options.quick else compare([0, 1], 1)
    served = arrivals(4, 2.0, 1) if options.quick else arrivals(JOBS, GAP_S, 3)
    conclude("knob_strategies", judge(rows, served), [*rows, *served], quick=options.quick)


if __name__ == "__main__":
    main()
