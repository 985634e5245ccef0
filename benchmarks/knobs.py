"""Training with tuned knobs against torch's defaults: time, accuracy and the cost of tuning.

Four networks with the default configurations of their workloads train in separate processes, one after the other: with
torch's defaults (one thread per core), with knobs that keep the precision, with knobs that may reduce it, and with the
first two under contention by a process that keeps one core busy, in random order for each of five seeds. The time and
the energy of all epochs are compared, including validation. Then similar jobs get what the first ones learned and must
reuse it, three times, testing only threads and cores; eight labeled pairs of jobs test whether similar jobs are
recognized; and contention starts in the middle of a training: it is answered after the last window that is slower than
those of a training that began beside the neighbor.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from claims import Claim, arguments, conclude, median, table

from onefold.engine.processes import ENVIRONMENT
from onefold.vocabulary.knobs import KnobMemory, KnobOptions, KnobRecord, Phase, StepWindow
from onefold.vocabulary.records import Config, Epoch, Grant, from_json, to_json

# Acceptance bars
EXACT_SPEEDUP, REDUCED_SPEEDUP, CONTENTION_SPEEDUP, LEAST_SPEEDUP = 1.2, 1.5, 2.0, 0.97
PROBING_COST, RECALL_LOSS, ACCURACY_LOSS = 0.03, 0.03, 0.003
RECOVERY_WINDOWS, RECOVERED_SHARE = 20, 0.90
WORKLOADS = {"fashion": 0.5, "newsgroups-cnn": 1.0, "newsgroups-lstm": 0.5, "cifar10": 0.3}  # share of the data
EPOCHS = 10
CONTENTION_KNOBS = ("threads", "cores")  # tested after every recall
REPETITIONS = 3  # of the comparison of a similar job with one that probes
SIMILAR = [  # jobs that differ little, or in hyperparameters that do not change the cost of a step
    (("fashion", {}), ("fashion", {"lr": 0.01, "dropout": 0.3})),
    (("fashion", {}), ("mnist", {})),
    (("newsgroups-cnn", {}), ("newsgroups-cnn", {"lr": 0.01})),
    (("cifar10", {}), ("cifar10", {"optimizer": "sgd"})),
]
DISSIMILAR = [
    (("fashion", {}), ("cifar10", {})),
    (("newsgroups-cnn", {}), ("newsgroups-lstm", {})),
    (("newsgroups-lstm", {}), ("fashion", {})),
    (("fashion", {"batch_size": 32}), ("fashion", {"batch_size": 1024})),
]


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train a configuration in this process as a study would."""
    from onefold.training.assignment import Assignment
    from onefold.training.workload_trainer import WorkloadTrainer
    from onefold.vocabulary.objective import Objective
    from onefold.vocabulary.workload_reference import load

    workload = load(order["workload"])
    config = workload.space.complete(order.get("config", {}))
    with tempfile.TemporaryDirectory() as folder:
        trainer = WorkloadTrainer(workload, Path(folder))
        assignment = Assignment(
            trial=0, rung=0, config=config, grant=Grant(1, order["epochs"], order["data"]), seed=order["seed"],
            threads=len(os.sched_getaffinity(0)), max_epochs=order["epochs"],
            objective=Objective(maximize="accuracy"), knobs=from_json(KnobOptions, order["knobs"]),
            remembered=tuple(from_json(KnobMemory, memory) for memory in order.get("remembered", ())),
        )  # fmt: skip
        training = trainer.train([assignment], tick=lambda: None)
        events = list(_with_contention(training, order.get("contention_after", math.inf)))
    epochs = [event for event in events if isinstance(event, Epoch)]
    records = [event for event in events if isinstance(event, KnobRecord)]
    return {
        "epochs s": [epoch.measurement.time_s for epoch in epochs],
        "train s": sum(epoch.measurement.time_s for epoch in epochs),
        "energy J": sum(epoch.measurement.energy.joules or 0.0 for epoch in epochs),
        "energy source": epochs[-1].measurement.energy.source,
        "accuracy": max(epoch.metrics["accuracy"] for epoch in epochs),
        "records": to_json(records),
    }


def _with_contention(events: Any, after: float) -> Any:
    """Yield the events of a training; start a busy process on the first core after a certain epoch."""
    process = None
    for event in events:
        yield event
        if process is None and isinstance(event, Epoch) and event.number >= after:
            process = start_busy_process()
            _wait_until_busy(process.pid)
    if process is not None:
        process.kill()


def start_busy_process() -> multiprocessing.Process:
    process = multiprocessing.get_context("spawn").Process(target=_keep_busy, args=(min(os.sched_getaffinity(0)),))
    process.daemon = True
    process.start()
    return process


def _wait_until_busy(pid: int | None) -> None:
    import psutil

    while psutil.Process(pid).cpu_percent(0.2) < 60:
        pass


def _keep_busy(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        math.sqrt(time.monotonic())


def run(workload: str, knobs: KnobOptions, *, seed: int = 0, contention: bool = False, **more: Any) -> dict[str, Any]:
    """Train a configuration in a new process."""
    order = {"workload": workload, "knobs": to_json(knobs), "seed": seed, **more}
    busy = start_busy_process() if contention else None
    if busy is not None:
        _wait_until_busy(busy.pid)
    # The workers of a study are started with an allocator that keeps freed memory; plain torch is not.
    environment = os.environ | ({} if knobs.mode == "off" else ENVIRONMENT)
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(order)],
            stdout=subprocess.PIPE, text=True, check=True, env=environment,
        )  # fmt: skip
    finally:
        if busy is not None:
            busy.kill()
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


VARIANTS = {
    "defaults": (KnobOptions("off"), False),
    "knobs": (KnobOptions("probe"), False),
    "reduced": (KnobOptions("probe", reduced=True), False),
    "defaults, contention": (KnobOptions("off"), True),
    "knobs, contention": (KnobOptions("probe"), True),
}


def records_of(row: dict[str, Any]) -> list[KnobRecord]:
    return [from_json(KnobRecord, record) for record in row["records"]]


def excess(epochs_s: list[float], records: list[KnobRecord]) -> float:
    """Return how much longer the epochs with probing took than the others, in seconds."""
    probed = {record.epoch for record in records if any(w.phase is Phase.PROBED for w in record.windows)}
    others = [seconds for number, seconds in enumerate(epochs_s, start=1) if number not in probed]
    return sum(epochs_s[number - 1] - median(others) for number in probed) if probed and others else 0.0


def probing_cost(row: dict[str, Any], defaults: dict[str, Any]) -> float:
    """Return the cost of probing as a share of the training time.

    The same epochs also take longer with the defaults, since the first epoch of any training does.
    """
    records = records_of(row)
    baseline = max(0.0, excess(defaults["epochs s"], records))
    return (excess(row["epochs s"], records) - baseline) / row["train s"]


def compare(seeds: list[int], epochs: int, scale: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for workload, share in WORKLOADS.items():
            trained: dict[str, dict[str, Any]] = {}  # by variant
            for variant in random.Random(f"{seed} {workload}").sample(list(VARIANTS), len(VARIANTS)):
                knobs, contention = VARIANTS[variant]
                data = share * scale * (0.5 if contention else 1.0)  # two threads under contention are very slow
                row = run(workload, knobs, seed=seed, contention=contention, epochs=epochs, data=data)
                learned = next((r.learned for r in records_of(row) if r.learned is not None), None)
                settled = " ".join(f"{k}={v}" for k, v in learned.knobs.items()) if learned else ""
                trained[variant] = {"workload": workload, "variant": variant, "seed": seed, **row, "settled": settled}
                table([{key: value for key, value in trained[variant].items() if key not in ("records", "epochs s")}])
            for variant, row in trained.items():
                baseline = trained["defaults, contention" if VARIANTS[variant][1] else "defaults"]
                rows.append({**row, "cost": probing_cost(row, baseline)})
    return rows


def recall(rows: list[dict[str, Any]], epochs: int, scale: float) -> list[dict[str, Any]]:
    """Train a similar job for each workload with everything that the first jobs learned."""
    first = {row["workload"]: row for row in rows if row["variant"] == "knobs"}
    known = [r.learned for row in first.values() for r in records_of(row) if r.learned is not None]
    found = []
    for workload, share in WORKLOADS.items():
        probed, ratios = 0, []
        for seed in range(7, 7 + REPETITIONS):
            order = {"seed": seed, "epochs": max(2, epochs // 3), "data": share * scale}
            row = run(workload, KnobOptions("on"), remembered=to_json(known), **order)
            windows = [window for record in records_of(row) for window in record.windows]
            probed += windows_probed_for_more_than_threads(windows)
            recalled = [window.step_s for window in windows if window.phase is Phase.RECALLED]
            # The best knobs are measured again, since the speed of the machine may have changed.
            row = run(workload, KnobOptions("probe"), **order)
            best = [w.step_s for record in records_of(row) for w in record.windows if w.phase is Phase.SETTLED]
            ratios.append(median(recalled) / median(best) if recalled and best else math.inf)
        found.append({"workload": workload, "probed windows": probed, "step time relative to best": median(ratios)})
    table(found)
    return found


def windows_probed_for_more_than_threads(windows: list[StepWindow]) -> int:
    """Return the number of probed windows in which another knob than those of contention differs from the recalled."""

    def others(window: StepWindow) -> dict[str, Any]:
        return {name: value for name, value in window.knobs.items() if name not in CONTENTION_KNOBS}

    recalled = [others(window) for window in windows if window.phase is Phase.RECALLED]
    probed = [others(window) for window in windows if window.phase is Phase.PROBED]
    return sum(window not in recalled for window in probed)


def pairs() -> list[dict[str, Any]]:
    """Test for labeled pairs whether exactly the similar job is recognized."""
    from onefold.training.knob_memory import SimilarJobs

    jobs = {json.dumps(job): None for pair in (*SIMILAR, *DISSIMILAR) for job in pair}
    profiles = {}
    for key in jobs:
        workload, config = json.loads(key)
        row = run(workload, KnobOptions("recall"), epochs=4, data=0.1, config=config)
        profiles[key] = next(record.profile for record in records_of(row) if record.profile is not None)
    found = []
    for is_similar, labeled in ((True, SIMILAR), (False, DISSIMILAR)):
        for known, new in labeled:
            profile = profiles[json.dumps(known)]
            memory = KnobMemory("", "time", False, profile, Config(), 1.0, 1.0)  # type: ignore[arg-type]
            match = SimilarJobs([memory]).find(profiles[json.dumps(new)])  # type: ignore[arg-type]
            found.append({
                "known": f"{known[0]} {known[1] or ''}", "new": f"{new[0]} {new[1] or ''}",
                "label": "similar" if is_similar else "dissimilar", "recalled": match is not None,
                "right": (match is not None) == is_similar,
            })  # fmt: skip
    table(found)
    return found


def recover(epochs: int, scale: float) -> list[dict[str, Any]]:
    """Count the windows until the last slow one of a training in which contention starts in the middle.

    Slow is a window with settled knobs that takes longer than the median of a training that began under contention.
    """
    found = []
    for workload in ("fashion", "newsgroups-cnn"):
        data = WORKLOADS[workload] * scale
        reference = run(workload, KnobOptions("probe"), contention=True, epochs=max(2, epochs // 3), data=data)
        possible_s = median(w.step_s for r in records_of(reference) for w in r.windows if w.phase is Phase.SETTLED)
        row = run(workload, KnobOptions("probe"), epochs=epochs, data=data, contention_after=max(1, epochs // 3))
        after = [w for record in records_of(row) if record.epoch > max(1, epochs // 3) for w in record.windows]
        slow = [
            number for number, window in enumerate(after, start=1)
            if window.phase is Phase.SETTLED and window.step_s > possible_s / RECOVERED_SHARE
        ]  # fmt: skip
        last = slow[-1] + 1 if slow else 1
        found.append(
            {"workload": workload, "possible ms": possible_s * 1e3, "windows": len(after), "recovered after": last}
        )
    table(found)
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(rows: list[dict[str, Any]], recalled: list[Any], labeled: list[Any], contended: list[Any]) -> list[Claim]:
    def times(variant: str, workload: str) -> list[float]:
        return [row["train s"] for row in rows if row["variant"] == variant and row["workload"] == workload]

    def speedups(variant: str, baseline: str = "defaults") -> list[float]:
        return [median(a / b for a, b in zip(times(baseline, w), times(variant, w))) for w in WORKLOADS]

    def accuracy_loss(variant: str) -> float:
        """Return the largest loss of accuracy of any workload, as the mean over seeds."""

        def mean(variant: str, workload: str) -> float:
            accuracies = [row["accuracy"] for row in rows if (row["variant"], row["workload"]) == (variant, workload)]
            return sum(accuracies) / len(accuracies)

        return max(mean("defaults", workload) - mean(variant, workload) for workload in WORKLOADS)

    exact, reduced = geometric_mean(speedups("knobs")), geometric_mean(speedups("reduced"))
    contention = geometric_mean(speedups("knobs, contention", "defaults, contention"))
    slowest = min(speedups("knobs") + speedups("reduced"))
    lost = max(accuracy_loss("knobs"), accuracy_loss("reduced"))
    cost = max(row["cost"] for row in rows if row["variant"] == "knobs")
    windows = sum(row["probed windows"] for row in recalled)
    ratio = max(row["step time relative to best"] for row in recalled)
    right = sum(row["right"] for row in labeled)
    recovery = max(row["recovered after"] for row in contended)
    return [
        Claim("speedup in full precision", f">= {EXACT_SPEEDUP}x", f"{exact:.2f}x", exact >= EXACT_SPEEDUP),
        Claim("speedup in reduced precision", f">= {REDUCED_SPEEDUP}x", f"{reduced:.2f}x", reduced >= REDUCED_SPEEDUP),
        Claim(
            "speedup under contention", f">= {CONTENTION_SPEEDUP}x", f"{contention:.2f}x",
            contention >= CONTENTION_SPEEDUP,
        ),
        Claim("smallest speedup", f">= {LEAST_SPEEDUP}x", f"{slowest:.2f}x", slowest >= LEAST_SPEEDUP),
        Claim("largest loss of accuracy", f"<= {ACCURACY_LOSS}", f"{lost:+.4f}", lost <= ACCURACY_LOSS),
        Claim("largest cost of probing", f"<= {PROBING_COST:.0%}", f"{cost:.1%}", cost <= PROBING_COST),
        Claim("similar job: windows probed for more than threads", "0", str(windows), windows == 0),
        Claim(
            "similar job: step time relative to the best", f"<= {1 + RECALL_LOSS}x", f"{ratio:.2f}x",
            ratio <= 1 + RECALL_LOSS,
        ),
        Claim("labeled pairs classified correctly", "8 of 8", f"{right} of {len(labeled)}", right == len(labeled)),
        Claim(
            "windows until the last slow one under contention", f"<= {RECOVERY_WINDOWS}", str(recovery),
            recovery <= RECOVERY_WINDOWS,
        ),
    ]  # fmt: skip


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(train(json.loads(sys.argv[-1]))))
        return
    options = arguments(__doc__)
    seeds, epochs, scale = ([0], 4, 0.4) if options.quick else ([0, 1, 2, 3, 4], EPOCHS, 1.0)
    rows = compare(seeds, epochs, scale)
    recalled, labeled, contended = recall(rows, epochs, scale), pairs(), recover(epochs, scale)
    kept = [{key: value for key, value in row.items() if key not in ("records", "epochs s")} for row in rows]
    figures = [*kept, *recalled, *labeled, *contended]
    conclude("knobs", judge(rows, recalled, labeled, contended), figures, quick=options.quick)


if __name__ == "__main__":
    main()
