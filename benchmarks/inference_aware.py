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
from statistics import median
from typing import Any

import time_to_result as peers
from claims import Claim, Stopwatch, arguments, conclude, table

from onefold import Budget, Choice, Config, Float, Objective, Space, Study
from onefold.device import PRECISE, open_session
from onefold.device.host import host
from onefold.meter import ModelledMeter
from onefold.serving.export import export
from onefold.serving.tuner import ServingTuner
from onefold.vocabulary.serving import OptimizeFor, Surface
from onefold.vocabulary.workload_reference import load

MAX_TUNING_TIME, MAX_TUNING_ENERGY = 0.80, 0.50  # relative to Ray Tune
MIN_SPEEDUP, MAX_SAMPLE_ENERGY, MAX_ACCURACY_LOSS = 1.3, 0.70, 0.01  # of the chosen model
TRADE_OFF = "accuracy - 0.028 * log(energy_per_sample_j)"  # 0.01 / -log(0.7): a point for 30 % less


def space() -> Space:
    """Return the space of the peers as one of Onefold."""
    parameters: dict[str, Any] = {name: Choice(*options) for name, options in peers.CHOICES.items()}
    parameters |= {name: Float(low, high, log=log) for name, (low, high, log) in peers.RANGES.items()}
    return Space(**parameters, momentum=Float(*peers.MOMENTUM, when={"optimizer": "sgd"}))


def tune_onefold(trials: int, seed: int, folder: Path) -> dict[str, Any]:
    """Tune with Onefold, with the energy of serving in the objective."""
    budget = Budget(trials=trials, max_epochs=peers.MAX_EPOCHS)
    objective = Objective(maximize=TRADE_OFF)
    study = Study("fashion", space(), objective=objective, budget=budget, seed=seed, home=folder, device="host")
    result = study.run()
    return {"config": dict(result.config), "test": result.test["accuracy"]}


def tune_ray(trials: int, seed: int, folder: Path) -> dict[str, Any]:
    """Tune for accuracy with Ray Tune."""
    return peers.run_ray(trials, seed, folder)


class ProcessorTime:
    """The CPU seconds of a process and all its descendants, however they end."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._root = psutil.Process(pid)
        self._seconds: dict[tuple[int, float], float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        import psutil

        while not self._stopped.wait(0.2):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for process in processes:
                try:
                    times = process.cpu_times()
                    self._seconds[process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:
                    continue

    def stop(self) -> float:
        """Stop sampling; return the total."""
        self._stopped.set()
        self._thread.join()
        return sum(self._seconds.values())


def run(tuner: str, trials: int, seed: int, home: Path) -> dict[str, Any]:
    """Run a tuner in a separate process, timed and monitored from this one."""
    with Stopwatch() as watch:
        process = subprocess.Popen(
            [sys.executable, __file__, "--one", tuner, str(trials), str(seed), str(home)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processor_time = ProcessorTime(process.pid)
        output, _ = process.communicate()
        cpu_s = processor_time.stop()
    if process.returncode:
        sys.exit(f"{tuner} failed")
    result = json.loads(output.strip().splitlines()[-1])
    joules = cpu_s * ModelledMeter().watts_per_busy_core
    return {"tuner": tuner, "seed": seed, "tuning s": watch.seconds, "tuning J (modelled)": joules, **result}


def serve(configs: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[Surface]]:
    """Measure the networks of these configurations on this machine, interleaved."""
    workload, data = load("fashion"), peers.arrays()
    models = {
        name: export(workload.build(Config(config)), [data.test[0][:8]], folder / f"{name}.onnx")
        for name, config in configs.items()
    }
    surfaces: dict[str, list[Surface]] = {name: [] for name in models}
    this_machine = host(folder)
    with open_session(this_machine, this_machine) as session:
        for _ in range(rounds):
            for name, model in models.items():
                tuner = ServingTuner(session)
                tuner.prepare(model)
                surfaces[name].append(tuner.measure(model, PRECISE))
    return surfaces


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
            pair = [run(tuner, trials, seed, Path(folder)) for tuner in ("onefold", "ray")]
            time.sleep(5)  # until the machine is idle
            surfaces = serve({row["tuner"]: row["config"] for row in pair}, Path(folder), rounds=3)
        for row in pair:
            measured = surfaces[row["tuner"]]
            row["latency ms"] = median(surface.best(OptimizeFor.LATENCY).latency_s for surface in measured) * 1e3
            row["samples/s"] = median(surface.best(OptimizeFor.THROUGHPUT).throughput_per_s for surface in measured)
            row["J/sample (modelled)"] = median(surface.metrics()["energy_per_sample_j"] for surface in measured)
        rows += pair
        table([{key: value for key, value in row.items() if key != "config"} for row in pair])
    table([{key: value for key, value in row.items() if key != "config"} for row in rows])
    conclude("inference_aware", serving_claims(rows), rows, quick=options.quick)


def serving_claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Return the claims about the cost of tuning and about the chosen models."""
    onefold, ray = ([row for row in rows if row["tuner"] == tuner] for tuner in ("onefold", "ray"))

    def ratio(key: str) -> float:
        return median(own[key] / peer[key] for own, peer in zip(onefold, ray))

    time_ratio, energy_ratio = ratio("tuning s"), ratio("tuning J (modelled)")
    faster, per_sample = 1 / ratio("latency ms"), ratio("J/sample (modelled)")
    loss = sum(peer["test"] - own["test"] for own, peer in zip(onefold, ray)) / len(onefold)
    served = f"{faster:.2f}x faster, {1 - per_sample:.0%} less energy"
    return [
        Claim("tuning time against Ray Tune", f"<= {MAX_TUNING_TIME}x", f"{time_ratio:.2f}x",
              time_ratio <= MAX_TUNING_TIME),
        Claim("tuning energy (modelled)", f"<= {MAX_TUNING_ENERGY}x", f"{energy_ratio:.2f}x",
              energy_ratio <= MAX_TUNING_ENERGY),
        Claim(
            "chosen model's serving", ">= 1.3x faster or >= 30% less energy per sample", served,
            faster >= MIN_SPEEDUP or per_sample <= MAX_SAMPLE_ENERGY,
        ),
        Claim("accuracy given up for it", "<= 0.01", f"{loss:+.4f}", loss <= MAX_ACCURACY_LOSS),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
