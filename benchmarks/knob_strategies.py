"""Studies that tune knobs within trials, against default knobs and against knobs as hyperparameters.

The baselines are those of PipeTune: V1 gives every trial the same default system parameters (one trial after the other
with a thread per core) and searches hyperparameters for accuracy; V2 has the knobs, also the number of threads, in the
space and searches for accuracy per second. All use Hyperband with the same budget, in random order for each of five
seeds. `fixed, tuned parallelism` is V1 with the trials side by side that Onefold's start finds; no claim rests on it.

The tuning time is compared at equal accuracy: when the best validation accuracy so far reached the lower one of the two
final values. Energy is that of all training. Then small tuning jobs of several trials arrive at one machine with
exponential interarrival times; the queue runs them side by side while there are cores. Four fifths of them are similar
to earlier jobs. The response time is from submission to result.
"""

from __future__ import annotations

import json
import os
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
ACCURACY_LOSS = 0.003
WORKLOADS = {"fashion": (9, 9), "newsgroups-cnn": (9, 9)}  # trials, epochs
STRATEGIES = {  # by name: the knob options
    "onefold": KnobOptions("on"),
    "onefold, reduced precision": KnobOptions("on", reduced=True),
    "fixed": KnobOptions("off"),
    "fixed, tuned parallelism": KnobOptions("off"),
    "as-hyperparameters": KnobOptions("off"),
}
ONE_BY_ONE = ("fixed", "as-hyperparameters")  # trials one after the other, with a thread per core
SEEN = ("fashion", "newsgroups-cnn")
UNSEEN = "speech"
JOBS, MEAN_INTERARRIVAL_S, JOB_TRIALS = 12, 4.0, 3


def study(workload: str, strategy: str, trials: int, epochs: int, seed: int, home: str, **options: Any) -> Any:
    """Return the study of a strategy."""
    from onefold import Budget, ParallelismOptions, Study
    from onefold.study import SearchOptions

    budget = Budget(trials=trials, max_epochs=epochs)
    options = {"seed": seed, "home": home, "search": SearchOptions(rungs="hyperband"), **options}
    if strategy in ONE_BY_ONE:
        options["parallelism"] = ParallelismOptions(1, len(os.sched_getaffinity(0)))
    if strategy == "as-hyperparameters":
        return _as_hyperparameters(workload, budget, options)
    return Study(workload, budget=budget, knobs=STRATEGIES[strategy], **options)


def _as_hyperparameters(workload: str, budget: Any, options: dict[str, Any]) -> Any:
    """Return the study that other tuners would run: knobs in the space, accuracy per second as the objective."""
    from onefold import Choice, Objective, Space, Study
    from onefold.study.tunable import Tunable

    tunable = Tunable(workload)
    cores = len(os.sched_getaffinity(0))
    threads = [2**i for i in range(cores.bit_length()) if 2**i <= cores]
    knobs = {
        "knob_threads": Choice(*threads),
        "knob_memory_format": Choice("contiguous", "channels last"),
        "knob_update": Choice("loop", "fused"),
    }
    goal = tunable.objective.goals[0]
    objective = Objective(maximize=f"({goal.metric}) / train_time_s", require=tunable.objective.require)
    space = Space(**tunable.space.groups, knobs=knobs)
    return Study(workload, space, objective=objective, budget=budget, knobs="off", **options)


def run_study(**order: Any) -> dict[str, Any]:
    """Run a study in this process; return its results and how the best validation accuracy grew."""
    from onefold.study.events import EpochFinished

    trace: list[tuple[float, float]] = []  # seconds since the start, best accuracy so far
    started = time.monotonic()

    def on_event(event: Any) -> None:
        if isinstance(event, EpochFinished) and (not trace or event.metrics["accuracy"] > trace[-1][1]):
            trace.append((time.monotonic() - started, event.metrics["accuracy"]))

    result = study(**order, on_event=on_event).run()
    energy = result.cost.energy
    return {
        "test": result.test["accuracy"], "validation": trace[-1][1], "trace": trace,
        "energy J": energy.joules, "energy source": energy.source, "folder": Path(result.folder).name,
    }  # fmt: skip


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run a study in a new process."""
    with Stopwatch() as watch:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(order)], stdout=subprocess.PIPE, text=True, check=True
        )
    return {"tuning s": watch.seconds, **json.loads(done.stdout.strip().splitlines()[-1])}


def time_to(accuracy: float, row: dict[str, Any]) -> float:
    """Return the seconds until the best validation accuracy of a study reached a value."""
    return float(next(seconds for seconds, best in row["trace"] if best >= accuracy))


def compare(seeds: list[int], shrink: int) -> list[dict[str, Any]]:
    rows = []
    for seed in seeds:
        strategies = random.Random(seed).sample(list(STRATEGIES), len(STRATEGIES))
        for strategy in strategies:
            with tempfile.TemporaryDirectory() as home:  # each strategy starts without remembered knobs
                for workload, (trials, epochs) in WORKLOADS.items():
                    order = {"workload": workload, "strategy": strategy, "trials": trials // shrink, "seed": seed}
                    result = run({**order, "epochs": max(2, epochs // shrink), "home": home})
                    rows.append({"workload": workload, "strategy": strategy, "seed": seed, **result})
                    table([{key: value for key, value in rows[-1].items() if key != "trace"}])
    return rows


def arrivals(seeds: list[int], jobs: int, mean_interarrival_s: float, epochs: int) -> list[dict[str, Any]]:
    """Measure the mean response time of arriving tuning jobs, with and without tuned knobs."""
    rows = []
    for seed in seeds:
        rng = random.Random(seed)
        unseen = round(jobs * 0.2)
        kinds = [UNSEEN] * unseen + [SEEN[i % len(SEEN)] for i in range(jobs - unseen)]
        rng.shuffle(kinds)
        gaps = [rng.expovariate(1 / mean_interarrival_s) for _ in kinds]
        for strategy in rng.sample(["fixed", "onefold"], 2):
            with tempfile.TemporaryDirectory() as home:
                if strategy == "onefold":
                    for workload in SEEN:  # earlier jobs
                        study(workload, strategy, JOB_TRIALS, epochs, 9, home).run()
                responses = _response_times(kinds, gaps, strategy, epochs, home)
            mean = sum(responses) / len(responses)
            rows.append({"strategy": strategy, "seed": seed, "jobs": len(responses), "mean response s": mean})
            table(rows[-1:])
    return rows


def _response_times(kinds: list[str], gaps: list[float], strategy: str, epochs: int, home: str) -> list[float]:
    from onefold.study import Home
    from onefold.study.queue import Queue

    queue = Queue(Home(home))
    earlier = {job.study for job in queue.jobs()}

    def arrive() -> None:
        for seed, (kind, gap) in enumerate(zip(kinds, gaps)):
            time.sleep(gap)
            queue.submit(study(kind, strategy, JOB_TRIALS, epochs, seed, home))
            queue.serve_in_background()  # as `onefold submit` does

    arrival = threading.Thread(target=arrive)
    arrival.start()
    arrival.join()
    while queue.waiting():
        time.sleep(1.0)
        queue.serve_in_background()  # unless it is served
    return [job.response_s for job in queue.jobs() if job.study not in earlier and job.response_s is not None]


def judge(rows: list[dict[str, Any]], responses: list[dict[str, Any]]) -> list[Claim]:
    claims = []
    by_strategy = {
        name: {(row["workload"], row["seed"]): row for row in rows if row["strategy"] == name} for name in STRATEGIES
    }
    for strategy in ("onefold", "onefold, reduced precision"):
        for baseline, bar in TUNING_TIME.items():
            ours, theirs = by_strategy[strategy], by_strategy[baseline]

            def ratio(key: tuple[str, int], ours: Any = ours, theirs: Any = theirs) -> float:
                accuracy = min(ours[key]["validation"], theirs[key]["validation"])
                return time_to(accuracy, ours[key]) / time_to(accuracy, theirs[key])

            worst = max(median(ratio(key) for key in ours if key[0] == workload) for workload in WORKLOADS)
            lost = sum(theirs[key]["test"] - ours[key]["test"] for key in ours) / len(ours)
            energies = [(ours[key]["energy J"], theirs[key]["energy J"]) for key in ours]
            against = f"{strategy} against {baseline}"
            claims.append(Claim(f"{against}: time to equal accuracy", f"<= {bar}x", f"{worst:.2f}x", worst <= bar))
            claims.append(
                Claim(f"{against}: loss of accuracy", f"<= {ACCURACY_LOSS}", f"{lost:+.4f}", lost <= ACCURACY_LOSS)
            )
            if all(mine and other for mine, other in energies):
                energy = median(mine / other for mine, other in energies)
                claims.append(Claim(f"{against}: energy", "<= 1x", f"{energy:.2f}x", energy <= 1.0))
    means = {
        strategy: [row["mean response s"] for row in responses if row["strategy"] == strategy]
        for strategy in ("onefold", "fixed")
    }
    ratio_of_means = median(mine / other for mine, other in zip(means["onefold"], means["fixed"]))
    claims.append(
        Claim(
            "mean response time against fixed", f"<= {RESPONSE_TIME}x", f"{ratio_of_means:.2f}x",
            ratio_of_means <= RESPONSE_TIME,
        )
    )  # fmt: skip
    return claims


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(run_study(**json.loads(sys.argv[-1]))))
        return
    options = arguments(__doc__)
    rows = compare([0], 3) if options.quick else compare([0, 1, 2, 3, 4], 1)
    responses = arrivals([0], 4, 2.0, 1) if options.quick else arrivals([0, 1, 2, 3, 4], JOBS, MEAN_INTERARRIVAL_S, 3)
    kept = [{key: value for key, value in row.items() if key != "trace"} for row in rows]
    conclude("knob_strategies", judge(rows, responses), [*kept, *responses], quick=options.quick)


if __name__ == "__main__":
    main()
