"""Training with the machine's knobs tuned while it trains, against torch's defaults: time, accuracy, and what it costs.

Four networks at the configuration of their authors, each training in a process of its own, in turns: torch's defaults
(as many threads as cores), knobs that keep precision, knobs that may reduce it, and the first two beside a process that
keeps one core busy. What is compared is the time of the epochs, scoring included. A second training is given what the
first one found out, and must recall it, in three turns. Eight pairs of jobs say whether like is told from unlike. In
the end a neighbour arrives in the middle of a training.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from claims import Claim, arguments, conclude, median, table

from onefold.engine.processes import ENVIRONMENT
from onefold.vocabulary.knobs import KnobMemory, KnobOptions, KnobRecord, Phase
from onefold.vocabulary.records import Config, Epoch, Grant, from_json, to_json

EXACT, REDUCED, CROWDED, NEVER = 1.2, 1.7, 2.0, 0.97
COST, RECALLED, POINT = 0.03, 0.03, 0.005
BACK_WITHIN, BACK_TO = 20, 0.90
WORKLOADS = {"fashion": 0.5, "newsgroups-cnn": 1.0, "newsgroups-lstm": 0.5, "cifar10": 0.3}  # share of the data
EPOCHS = 10
TURNS = 3  # in which a similar job is compared with one that probes
ALIKE = [  # jobs that differ in what does not matter, or a little
    (("fashion", {}), ("fashion", {"lr": 0.01, "dropout": 0.3})),
    (("fashion", {}), ("mnist", {})),
    (("newsgroups-cnn", {}), ("newsgroups-cnn", {"lr": 0.01})),
    (("cifar10", {}), ("cifar10", {"optimizer": "sgd"})),
]
UNLIKE = [
    (("fashion", {}), ("cifar10", {})),
    (("newsgroups-cnn", {}), ("newsgroups-lstm", {})),
    (("newsgroups-lstm", {}), ("fashion", {})),
    (("fashion", {"batch_size": 32}), ("fashion", {"batch_size": 1024})),
]


def train(order: dict[str, Any]) -> dict[str, Any]:
    """One training in this process, as a study would run it."""
    from onefold.training.assignment import Assignment
    from onefold.training.workload_trainer import WorkloadTrainer
    from onefold.vocabulary.objective import Objective
    from onefold.vocabulary.workload_reference import load

    workload = load(order["workload"])
    config = workload.space.complete(order.get("config", {}))
    with tempfile.TemporaryDirectory() as folder:
        trainer = WorkloadTrainer(workload, Path(folder))
        work = Assignment(
            trial=0, rung=0, config=config, grant=Grant(1, order["epochs"], order["data"]), seed=order["seed"],
            threads=len(os.sched_getaffinity(0)), max_epochs=order["epochs"],
            objective=Objective(maximize="accuracy"), knobs=from_json(KnobOptions, order["knobs"]),
            remembered=tuple(from_json(KnobMemory, one) for one in order.get("remembered", ())),
        )  # fmt: skip
        told = list(_with_neighbour(trainer.train([work], tick=lambda: None), order.get("neighbour_after", math.inf)))
    epochs = [each for each in told if isinstance(each, Epoch)]
    steered = [each for each in told if isinstance(each, KnobRecord)]
    return {
        "epochs s": [epoch.measurement.time_s for epoch in epochs],
        "train s": sum(epoch.measurement.time_s for epoch in epochs),
        "accuracy": max(epoch.metrics["accuracy"] for epoch in epochs),
        "steered": to_json(steered),
    }


def _with_neighbour(told: Any, after: float) -> Any:
    """What is told, with a busy process on the first core from a certain epoch on."""
    process = None
    for each in told:
        yield each
        if process is None and isinstance(each, Epoch) and each.number >= after:
            process = busy_neighbour()
            _wait_until_busy(process.pid)
    if process is not None:
        process.kill()


def busy_neighbour() -> multiprocessing.Process:
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


def one(workload: str, knobs: KnobOptions, *, seed: int = 0, crowded: bool = False, **more: Any) -> dict[str, Any]:
    """One training in a process of its own."""
    order = {"workload": workload, "knobs": to_json(knobs), "seed": seed, **more}
    neighbour = busy_neighbour() if crowded else None
    if neighbour is not None:
        _wait_until_busy(neighbour.pid)
    # A worker of a study is started with an environment that has it keep its memory; torch by itself is not.
    environment = os.environ | ({} if knobs.mode == "off" else ENVIRONMENT)
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(order)],
            stdout=subprocess.PIPE, text=True, check=True, env=environment,
        )  # fmt: skip
    finally:
        if neighbour is not None:
            neighbour.kill()
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


WAYS = {
    "defaults": (KnobOptions("off"), False),
    "knobs": (KnobOptions("probe"), False),
    "reduced": (KnobOptions("probe", reduced=True), False),
    "defaults, crowded": (KnobOptions("off"), True),
    "knobs, crowded": (KnobOptions("probe"), True),
}


def steered_of(row: dict[str, Any]) -> list[KnobRecord]:
    return [from_json(KnobRecord, each) for each in row["steered"]]


def excess(epochs_s: list[float], steered: list[KnobRecord]) -> float:
    """What the epochs with probing took beyond the others."""
    tried = {each.epoch for each in steered if any(window.phase is Phase.PROBED for window in each.windows)}
    others = [seconds for number, seconds in enumerate(epochs_s, start=1) if number not in tried]
    return sum(epochs_s[number - 1] - median(others) for number in tried) if tried and others else 0.0


def probing_cost(row: dict[str, Any], defaults: dict[str, Any]) -> float:
    """What probing cost as a share of all, whatever it was spent on; the first epoch of any training takes longer."""
    steered = steered_of(row)
    anyway = max(0.0, excess(defaults["epochs s"], steered))
    return (excess(row["epochs s"], steered) - anyway) / row["train s"]


def compare(seeds: list[int], epochs: int, scale: float) -> list[dict[str, Any]]:
    rows = []
    for seed in seeds:
        for workload, share in WORKLOADS.items():
            last: dict[bool, dict[str, Any]] = {}  # of torch's defaults, by whether it was crowded
            for way, (knobs, crowded) in WAYS.items():
                if crowded and seed != seeds[0]:
                    continue
                data = share * scale * (0.5 if crowded else 1.0)  # two threads beside a neighbour take forever
                row = one(workload, knobs, seed=seed, crowded=crowded, epochs=epochs, data=data)
                steered = steered_of(row)
                learned = next((each.learned for each in steered if each.learned is not None), None)
                settled = " ".join(f"{k}={v}" for k, v in learned.knobs.items()) if learned else ""
                defaults = row if knobs.mode == "off" else last[crowded]
                last[crowded] = defaults
                cost = probing_cost(row, defaults)
                rows.append({"workload": workload, "way": way, "seed": seed, **row, "cost": cost, "settled": settled})
                shown = {key: value for key, value in rows[-1].items() if key not in ("steered", "epochs s")}
                table([shown])
    return rows


def recall(rows: list[dict[str, Any]], epochs: int, scale: float) -> list[dict[str, Any]]:
    """A second, similar job for each workload, given what all first ones found out."""
    first = {row["workload"]: row for row in rows if row["way"] == "knobs"}
    known = [each.learned for row in first.values() for each in steered_of(row) if each.learned is not None]
    found = []
    for workload, share in WORKLOADS.items():
        probed, against = 0, []
        for seed in range(7, 7 + TURNS):
            order = {"seed": seed, "epochs": max(2, epochs // 3), "data": share * scale}
            row = one(workload, KnobOptions("on"), remembered=to_json(known), **order)
            windows = [window for each in steered_of(row) for window in each.windows]
            probed += sum(window.phase is Phase.PROBED for window in windows)
            again = [window.step_s for window in windows if window.phase is Phase.RECALLED]
            # What is best now is measured now: the machine may have become slower or faster since.
            row = one(workload, KnobOptions("probe"), **order)
            best = [w.step_s for each in steered_of(row) for w in each.windows if w.phase is Phase.SETTLED]
            against.append(median(again) / median(best) if again and best else math.inf)
        found.append({"workload": workload, "probed windows": probed, "step against best": median(against)})
    table(found)
    return found


def pairs() -> list[dict[str, Any]]:
    """Whether jobs that are labelled alike are recalled, and others not."""
    from onefold.training.knob_memory import SimilarJobs

    jobs = {json.dumps(job): None for pair in (*ALIKE, *UNLIKE) for job in pair}
    profiles = {}
    for key in jobs:
        workload, config = json.loads(key)
        row = one(workload, KnobOptions("recall"), epochs=4, data=0.1, config=config)
        profiles[key] = next(each.profile for each in steered_of(row) if each.profile is not None)
    found = []
    for alike, labelled in ((True, ALIKE), (False, UNLIKE)):
        for known, new in labelled:
            profile = profiles[json.dumps(known)]
            remembered = KnobMemory("", "time", False, profile, Config(), 1.0, 1.0)  # type: ignore[arg-type]
            like = SimilarJobs([remembered]).find(profiles[json.dumps(new)])  # type: ignore[arg-type]
            found.append({
                "known": f"{known[0]} {known[1] or ''}", "new": f"{new[0]} {new[1] or ''}",
                "labelled": "alike" if alike else "unlike", "recalled": like is not None,
                "right": (like is not None) == alike,
            })  # fmt: skip
    table(found)
    return found


def arrival(epochs: int, scale: float) -> list[dict[str, Any]]:
    """Windows until a training has found its way back after a neighbour arrived."""
    found = []
    for workload in ("fashion", "newsgroups-cnn"):
        data = WORKLOADS[workload] * scale
        alone = one(workload, KnobOptions("probe"), crowded=True, epochs=max(2, epochs // 3), data=data)
        possible = median(w.step_s for each in steered_of(alone) for w in each.windows if w.phase is Phase.SETTLED)
        row = one(workload, KnobOptions("probe"), epochs=epochs, data=data, neighbour_after=max(1, epochs // 3))
        after = [w for each in steered_of(row) if each.epoch > max(1, epochs // 3) for w in each.windows]
        settled = [
            number for number, window in enumerate(after, start=1)
            if window.phase is Phase.SETTLED and window.step_s <= possible / BACK_TO
        ]  # fmt: skip
        back = settled[0] if settled else len(after) + 1
        found.append({"workload": workload, "possible ms": possible * 1e3, "windows": len(after), "back after": back})
    table(found)
    return found


def geometric(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(rows: list[dict[str, Any]], again: list[Any], labelled: list[Any], arrived: list[Any]) -> list[Claim]:
    def times(way: str, workload: str) -> list[float]:
        return [row["train s"] for row in rows if row["way"] == way and row["workload"] == workload]

    def faster(way: str, against: str = "defaults") -> list[float]:
        return [median(a / b for a, b in zip(times(against, w), times(way, w))) for w in WORKLOADS]

    def accuracy(way: str) -> float:
        """The most that is lost on any workload, mean over seeds."""

        def mean(way: str, workload: str) -> float:
            reached = [row["accuracy"] for row in rows if (row["way"], row["workload"]) == (way, workload)]
            return sum(reached) / len(reached)

        return max(mean("defaults", workload) - mean(way, workload) for workload in WORKLOADS)

    exact, reduced, crowded = faster("knobs"), faster("reduced"), faster("knobs, crowded", "defaults, crowded")
    slowest = min(exact + reduced)
    lost = max(accuracy("knobs"), accuracy("reduced"))
    cost = max(row["cost"] for row in rows if row["way"] == "knobs")
    return [
        Claim("knobs that keep precision", f">= {EXACT}x", f"{geometric(exact):.2f}x", geometric(exact) >= EXACT),
        Claim("precision reduced", f">= {REDUCED}x", f"{geometric(reduced):.2f}x", geometric(reduced) >= REDUCED),
        Claim("beside a busy neighbour", f">= {CROWDED}x", f"{geometric(crowded):.2f}x", geometric(crowded) >= CROWDED),
        Claim("never slower", f">= {NEVER}x", f"{slowest:.2f}x", slowest >= NEVER),
        Claim("accuracy lost, the most of any", f"<= {POINT}", f"{lost:+.4f}", lost <= POINT),
        Claim("cost of probing, the most of any", f"<= {COST:.0%}", f"{cost:.1%}", cost <= COST),
        Claim(
            "a similar job: windows probed", "0", str(sum(row["probed windows"] for row in again)),
            not any(row["probed windows"] for row in again),
        ),
        Claim(
            "a similar job: its step against the best", f"<= {1 + RECALLED}x",
            f"{max(row['step against best'] for row in again):.2f}x",
            max(row["step against best"] for row in again) <= 1 + RECALLED,
        ),
        Claim(
            "labelled pairs told apart", "8 of 8", f"{sum(row['right'] for row in labelled)} of {len(labelled)}",
            all(row["right"] for row in labelled),
        ),
        Claim(
            "a neighbour arrives: windows until back", f"<= {BACK_WITHIN}",
            str(max(row["back after"] for row in arrived)), all(row["back after"] <= BACK_WITHIN for row in arrived),
        ),
    ]  # fmt: skip


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(train(json.loads(sys.argv[-1]))))
        return
    options = arguments(__doc__)
    seeds, epochs, scale = ([0], 4, 0.4) if options.quick else ([0, 1, 2], EPOCHS, 1.0)
    rows = compare(seeds, epochs, scale)
    again, labelled, arrived = recall(rows, epochs, scale), pairs(), arrival(epochs, scale)
    kept = [{key: value for key, value in row.items() if key not in ("steered", "epochs s")} for row in rows]
    conclude("knobs", judge(rows, again, labelled, arrived), [*kept, *again, *labelled, *arrived], quick=options.quick)


if __name__ == "__main__":
    main()
