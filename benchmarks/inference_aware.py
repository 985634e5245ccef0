"""Inference-aware tuning against tuning for accuracy alone with Ray Tune, on the same trials.

LeNet on Fashion-MNIST with the same space, number of trials, maximum epochs, two cores, training code and search (TPE).
Ray Tune (Optuna search + ASHA) maximizes accuracy; Onefold, with its default rungs, measures how every trial is served
on this machine, and trades one point of accuracy for 30 % less energy per sample. Tuning time includes startup. Tuning
energy is modelled for both in the same way, from the CPU seconds of all their processes. The two models are then
measured interleaved, at batch size 1 and at their best batch size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import time_to_result as peers
from claims import Claim, Stopwatch, arguments, conclude, median, table

from onefold import Budget, Choice, Config, Float, Objective, Space, Study
from onefold.device import PRECISE, open_session
from onefold.device.host import host
from onefold.meter import ModelledMeter
from onefold.serving.export import export
from onefold.serving.tuner import ServingTuner
from onefold.vocabulary.serving import OptimizeFor, Surface
from onefold.vocabulary.workload_reference import load

LESS_TIME, LESS_ENERGY = 0.80, 0.50
FASTER, LESS_PER_SAMPLE, POINT = 1.3, 0.70, 0.01
WORTH = "accuracy - 0.028 * log(energy_per_sample_j)"  # 0.01 / -log(0.7): a point for 30 % less


def space() -> Space:
    parameters: dict[str, Any] = {name: Choice(*options) for name, options in peers.CHOICES.items()}
    parameters |= {name: Float(low, high, log=log) for name, (low, high, log) in peers.RANGES.items()}
    return Space(**parameters, momentum=Float(*peers.MOMENTUM, when={"optimizer": "sgd"}))


def tune_onefold(trials: int, seed: int, folder: Path) -> dict[str, Any]:
    budget = Budget(trials=trials, max_epochs=peers.MAX_EPOCHS)
    objective = Objective(maximize=WORTH)
    study = Study("fashion", space(), objective=objective, budget=budget, seed=seed, home=folder, device="host")
    result = study.run()
    return {"config": dict(result.config), "test": result.test["accuracy"]}


def tune_ray(trials: int, seed: int, folder: Path) -> dict[str, Any]:
    return peers.run_ray(trials, seed, folder)


class ProcessorTime:
    """The CPU seconds of a process and all its descendants, however they end."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._root = psutil.Process(pid)
        self._seconds: dict[tuple[int, float], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import psutil

        while not self._over.wait(0.2):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in family:
                try:
                    times = process.cpu_times()
                    self._seconds[process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:
                    continue

    def total(self) -> float:
        self._over.set()
        self._thread.join()
        return sum(self._seconds.values())


def one(tuner: str, trials: int, seed: int, home: Path) -> dict[str, Any]:
    """Run a tuner in a separate process, timed and monitored from outside."""
    with Stopwatch() as watch:
        process = subprocess.Popen(
            [sys.executable, __file__, "--one", tuner, str(trials), str(seed), str(home)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        spent = ProcessorTime(process.pid)
        said, _ = process.communicate()
        cpu_s = spent.total()
    if process.returncode:
        sys.exit(f"{tuner} failed")
    found = json.loads(said.strip().splitlines()[-1])
    joules = cpu_s * ModelledMeter().watts_per_busy_core
    return {"tuner": tuner, "seed": seed, "tuning s": watch.seconds, "tuning J (modelled)": joules, **found}


def serve(configs: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[Surface]]:
    """Measure the networks of these configurations on this machine, interleaved."""
    workload, data = load("fashion"), peers.arrays()
    models = {
        name: export(workload.build(Config(config)), [data.test[0][:8]], folder / f"{name}.onnx")
        for name, config in configs.items()
    }
    found: dict[str, list[Surface]] = {name: [] for name in models}
    this_machine = host(folder)
    with open_session(this_machine, this_machine) as session:
        for _ in range(rounds):
            for name, model in models.items():
                tuner = ServingTuner(session)
                tuner.prepare(model)
                found[name].append(tuner.measure(model, PRECISE))
    return found


def main() -> None:
    if "--one" in sys.argv:
        tuner, trials, seed, home = sys.argv[-4:]
        print(json.dumps({"onefold": tune_onefold, "ray": tune_ray}[tuner](int(trials), int(seed), Path(home))))
        return
    options = arguments(__doc__)
    trials, seeds = (6, [0]) if options.quick else (18, [0, 1])
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            host(Path(folder) / "devices")  # calibrate beforehand
            pair = [one(tuner, trials, seed, Path(folder)) for tuner in ("onefold", "ray")]
            time.sleep(5)  # until the machine is idle
            surfaces = serve({row["tuner"]: row["config"] for row in pair}, Path(folder), rounds=3)
        for row in pair:
            mine = surfaces[row["tuner"]]
            row["latency ms"] = median(each.best(OptimizeFor.LATENCY).latency_s for each in mine) * 1e3
            row["samples/s"] = median(each.best(OptimizeFor.THROUGHPUT).throughput_per_s for each in mine)
            row["J/sample (modelled)"] = median(each.metrics()["energy_per_sample_j"] for each in mine)
        rows += pair
        table([{key: value for key, value in row.items() if key != "config"} for row in pair])
    table([{key: value for key, value in row.items() if key != "config"} for row in rows])
    conclude("inference_aware", judge(rows), rows, quick=options.quick)


def judge(rows: list[dict[str, Any]]) -> list[Claim]:
    ours, theirs = ([row for row in rows if row["tuner"] == tuner] for tuner in ("onefold", "ray"))

    def ratio(key: str) -> float:
        return median(mine[key] / other[key] for mine, other in zip(ours, theirs))

    time_ratio, energy_ratio = ratio("tuning s"), ratio("tuning J (modelled)")
    faster, per_sample = 1 / ratio("latency ms"), ratio("J/sample (modelled)")
    lost = sum(other["test"] - mine["test"] for mine, other in zip(ours, theirs)) / len(ours)
    served = f"{faster:.2f}x faster, {1 - per_sample:.0%} less energy"
    return [
        Claim("tuning time against Ray Tune", f"<= {LESS_TIME}x", f"{time_ratio:.2f}x", time_ratio <= LESS_TIME),
        Claim("tuning energy (modelled)", f"<= {LESS_ENERGY}x", f"{energy_ratio:.2f}x", energy_ratio <= LESS_ENERGY),
        Claim(
            "chosen model's serving", ">= 1.3x faster or >= 30% less energy per sample", served,
            faster >= FASTER or per_sample <= LESS_PER_SAMPLE,
        ),
        Claim("accuracy given up for it", "<= 0.01", f"{lost:+.4f}", lost <= POINT),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
