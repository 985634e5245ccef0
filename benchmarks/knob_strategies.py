"""Studies that tune knobs within trials, against default knobs and against knobs as hyperparameters.

The baselines are those of PipeTune: V1 gives every trial the same default system parameters (one trial after the other
with a thread per core) and searches hyperparameters for accuracy; V2 has the knobs, also the number of threads, in the
space and searches for accuracy per second. All use Hyperband with the same budget, in random order for each of five
seeds. `fixed, tuned parallelism` is V1 with the trials side by side that Onefold's start finds; no claim rests on it.

The tuning time is compared at equal accuracy: when the best validation accuracy so far reached the lower one of the two
final values. Energy is that of all training. Then small tuning jobs of several trials arrive at one machine with
exponential interarrival times; the queue runs them side by side while there are cores. Four fifths of them are similar
to earlier jobs. The response time is from submission to result.

With `--state FOLDER`, an interrupted run continues with its first unfinished strategy.
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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, Stopwatch, argument_parser, conclude, table
from claims.journal import Journal, open_journal

from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.records import StudyState

Row = dict[str, Any]
METHOD_VERSION = 2  # counted up when figures are no longer comparable with earlier ones
MAX_TUNING_TIME = {"fixed": 0.82, "as-hyperparameters": 0.70}  # relative to the baseline
MAX_RESPONSE_TIME, MAX_ENERGY = 0.70, 1.0
MAX_ACCURACY_LOSS = 0.003
SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0,)
WORKLOADS = {"fashion": (9, 9), "newsgroups-cnn": (9, 9)}  # trials, epochs
QUICK_SHRINK = 3
STRATEGIES = {  # by name: the knob options
    "onefold": KnobOptions("on"),
    "onefold, reduced precision": KnobOptions("on", reduced=True),
    "fixed": KnobOptions("off"),
    "fixed, tuned parallelism": KnobOptions("off"),
    "as-hyperparameters": KnobOptions("off"),
}
CLAIMED = ("onefold", "onefold, reduced precision")
ONE_BY_ONE = ("fixed", "as-hyperparameters")  # trials one after the other, with a thread per core
SEEN, UNSEEN = ("fashion", "newsgroups-cnn"), "speech"
UNSEEN_SHARE, EARLIER_SEED = 0.2, 9


@dataclass(frozen=True)
class StudyRequest:
    """A study of a workload with a strategy."""

    workload: str
    strategy: str
    trials: int
    epochs: int
    seed: int
    home: str


@dataclass(frozen=True)
class Arrivals:
    """Tuning jobs that arrive at one machine."""

    jobs: int
    mean_interarrival_s: float
    trials: int
    epochs: int


ARRIVALS, QUICK_ARRIVALS = Arrivals(12, 4.0, 3, 3), Arrivals(4, 2.0, 3, 1)


def create_study(request: StudyRequest, **options: Any) -> Any:
    """Return the study of a request."""
    from onefold import Budget, ParallelismOptions, Study
    from onefold.study import SearchOptions

    budget = Budget(trials=request.trials, max_epochs=request.epochs)
    options |= {"seed": request.seed, "home": request.home, "search": SearchOptions(rungs="hyperband")}
    if request.strategy in ONE_BY_ONE:
        options["parallelism"] = ParallelismOptions(1, len(os.sched_getaffinity(0)))
    if request.strategy == "as-hyperparameters":
        return _knobs_as_hyperparameters(request.workload, budget, options)
    return Study(request.workload, budget=budget, knobs=STRATEGIES[request.strategy], **options)


def _knobs_as_hyperparameters(workload: str, budget: Any, options: dict[str, Any]) -> Any:
    """Return a study with the knobs in the space and accuracy per second as the objective."""
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
    accuracy = tunable.objective.goals[0].metric
    objective = Objective(maximize=f"({accuracy}) / train_time_s", require=tunable.objective.require)
    space = Space(**tunable.space.groups, knobs=knobs)
    return Study(workload, space, objective=objective, budget=budget, knobs="off", **options)


def run_here(request: StudyRequest) -> Row:
    """Run a study in this process; return its results and how the best validation accuracy grew."""
    from onefold.study.events import EpochFinished

    trace: list[tuple[float, float]] = []  # seconds since the start, best accuracy so far
    started = time.monotonic()

    def on_event(event: Any) -> None:
        if isinstance(event, EpochFinished) and (not trace or event.metrics["accuracy"] > trace[-1][1]):
            trace.append((time.monotonic() - started, event.metrics["accuracy"]))

    result = create_study(request, on_event=on_event).run()
    energy = result.cost.energy
    return {
        "test": result.test["accuracy"], "validation": trace[-1][1], "trace": trace,
        "energy J": energy.joules, "energy source": energy.source, "folder": Path(result.folder).name,
    }  # fmt: skip


def run(request: StudyRequest) -> Row:
    """Run a study in a new process."""
    with Stopwatch() as watch:
        ended = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(asdict(request))],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return {"tuning s": watch.seconds, **json.loads(ended.stdout.strip().splitlines()[-1])}


def compare_strategies(journal: Journal, seeds: Iterable[int], shrink: int) -> list[Row]:
    """Run every strategy on all workloads, in random order for each seed."""
    rows: list[Row] = []
    for seed in seeds:
        for strategy in random.Random(seed).sample(list(STRATEGIES), len(STRATEGIES)):
            studies = journal.section(
                f"{strategy}, seed {seed}", list, partial(_run_workloads, strategy, seed, shrink)
            )  # fmt: skip
            table([{key: value for key, value in row.items() if key != "trace"} for row in studies])
            rows += studies
    return rows


def _run_workloads(strategy: str, seed: int, shrink: int) -> list[Row]:
    """Run a strategy on all workloads, in a home without remembered knobs."""
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for workload, (trials, epochs) in WORKLOADS.items():
            request = StudyRequest(workload, strategy, trials // shrink, max(2, epochs // shrink), seed, home)
            rows.append({"workload": workload, "strategy": strategy, "seed": seed, **run(request)})
    return rows


def measure_arrivals(journal: Journal, seeds: Iterable[int], arrivals: Arrivals) -> list[Row]:
    """Measure the mean response time of arriving tuning jobs, with and without tuned knobs."""
    rows = []
    for seed in seeds:
        rng = random.Random(seed)
        unseen = round(arrivals.jobs * UNSEEN_SHARE)
        workloads = [UNSEEN] * unseen + [SEEN[i % len(SEEN)] for i in range(arrivals.jobs - unseen)]
        rng.shuffle(workloads)
        gaps_s = [rng.expovariate(1 / arrivals.mean_interarrival_s) for _ in workloads]
        for strategy in rng.sample(["fixed", "onefold"], 2):
            responses_s = journal.section(
                f"arrivals, {strategy}, seed {seed}",
                list,
                partial(_response_times, list(zip(workloads, gaps_s)), strategy, arrivals),
            )
            mean_s = sum(responses_s) / len(responses_s)
            rows.append({"strategy": strategy, "seed": seed, "jobs": len(responses_s), "mean response s": mean_s})
            table(rows[-1:])
    return rows


def _response_times(jobs: Sequence[tuple[str, float]], strategy: str, arrivals: Arrivals) -> list[float]:
    """Submit a job of a workload after each gap; return their response times. Raises RuntimeError if a study fails."""
    from onefold.study import Home
    from onefold.study.queue import Queue

    with tempfile.TemporaryDirectory() as home:

        def create(workload: str, seed: int) -> Any:
            return create_study(StudyRequest(workload, strategy, arrivals.trials, arrivals.epochs, seed, home))

        if strategy == "onefold":
            for workload in SEEN:
                create(workload, EARLIER_SEED).run()
        queue = Queue(Home(home))

        def submit_all() -> None:
            for seed, (workload, gap_s) in enumerate(jobs):
                time.sleep(gap_s)
                queue.submit(create(workload, seed))
                queue.serve_in_background()  # as `onefold submit` does

        submission = threading.Thread(target=submit_all)
        submission.start()
        submission.join()
        while queue.waiting():
            time.sleep(1.0)
            queue.serve_in_background()  # unless it is served
        while queue.is_served:  # its last studies still write into the home
            time.sleep(0.1)
        ended = queue.jobs()
        with closing(Home(home).store()) as store:
            failed = [job.study for job in ended if store.study(job.study).state is not StudyState.DONE]
    if failed or len(ended) != len(jobs):
        raise RuntimeError(f"{len(ended)} of {len(jobs)} jobs were submitted; failed: {', '.join(failed) or 'none'}")
    return [job.response_s for job in ended if job.response_s is not None]


def time_to_accuracy(row: Row, accuracy: float) -> float:
    """Return the seconds until the best validation accuracy of a study reached a value."""
    return float(next(seconds for seconds, best in row["trace"] if best >= accuracy))


def tuning_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about time to equal accuracy, accuracy and energy."""
    studies: dict[str, dict[tuple[str, int], Row]] = {name: {} for name in STRATEGIES}
    for row in rows:
        studies[row["strategy"]][row["workload"], row["seed"]] = row
    return [
        claim
        for strategy in CLAIMED
        for baseline, bar in MAX_TUNING_TIME.items()
        for claim in _comparison_claims(f"{strategy} against {baseline}", studies[strategy], studies[baseline], bar)
    ]


def _comparison_claims(
    title: str, onefold: Mapping[tuple[str, int], Row], baseline: Mapping[tuple[str, int], Row], max_time: float
) -> list[Claim]:
    """Return the claims of a strategy against a baseline, from their studies by workload and seed."""

    def time_ratio(key: tuple[str, int]) -> float:
        accuracy = min(onefold[key]["validation"], baseline[key]["validation"])
        return time_to_accuracy(onefold[key], accuracy) / time_to_accuracy(baseline[key], accuracy)

    worst = max(median(time_ratio(key) for key in onefold if key[0] == workload) for workload in WORKLOADS)
    loss = sum(baseline[key]["test"] - onefold[key]["test"] for key in onefold) / len(onefold)
    claims = [
        Claim(f"{title}: time to equal accuracy", f"<= {max_time}x", f"{worst:.2f}x", worst <= max_time),
        Claim(f"{title}: loss of accuracy", f"<= {MAX_ACCURACY_LOSS}", f"{loss:+.4f}", loss <= MAX_ACCURACY_LOSS),
    ]
    energies_j = [(onefold[key]["energy J"], baseline[key]["energy J"]) for key in onefold]
    if all(tuned_j and default_j for tuned_j, default_j in energies_j):
        energy = median(tuned_j / default_j for tuned_j, default_j in energies_j)
        claims.append(Claim(f"{title}: energy", f"<= {MAX_ENERGY:g}x", f"{energy:.2f}x", energy <= MAX_ENERGY))
    return claims


def response_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claim about the mean response time of arriving jobs."""
    means_s = {
        strategy: [row["mean response s"] for row in rows if row["strategy"] == strategy]
        for strategy in ("onefold", "fixed")
    }
    ratio = median(tuned_s / fixed_s for tuned_s, fixed_s in zip(means_s["onefold"], means_s["fixed"]))
    return [
        Claim("mean response time against fixed", f"<= {MAX_RESPONSE_TIME}x", f"{ratio:.2f}x",
              ratio <= MAX_RESPONSE_TIME)
    ]  # fmt: skip


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(run_here(StudyRequest(**json.loads(sys.argv[-1])))))
        return
    parser = argument_parser(__doc__)
    parser.add_argument("--state", type=Path, help="folder of the finished strategies; by default a new one")
    options = parser.parse_args()
    seeds, shrink, arrivals = (QUICK_SEEDS, QUICK_SHRINK, QUICK_ARRIVALS) if options.quick else (SEEDS, 1, ARRIVALS)
    with open_journal(options.state, quick=options.quick) as journal:
        rows = compare_strategies(journal, seeds, shrink)
        responses = measure_arrivals(journal, seeds, arrivals)
    studies = [{key: value for key, value in row.items() if key != "trace"} for row in rows]
    claims = [*tuning_claims(rows), *response_claims(responses)]
    conclude("knob_strategies", claims, [*studies, *responses], quick=options.quick)


if __name__ == "__main__":
    main()
