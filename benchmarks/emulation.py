"""Accuracy of the emulator: against a run pinned to one core, on a machine not used to fit, and on ARM boards.

1. An emulated one-core device with the calibrated figures of this machine against a program without Onefold: plain ONNX
   Runtime, pinned to the core by taskset. Six networks at batch sizes 1 and 16, interleaved; medians.
2. A machine that was not used to fit: 24 networks as float and int8 at batch sizes 1, 8 and 32 on 1 to 4 threads,
   recorded there three times (`emulations/recordings`). Its probe and the latencies of one thread on this machine, in
   processor time, predict all of them; nothing is fitted to the recording. Beside the errors stand the repeatability of
   the recording (each round against the median of the others), the errors against its quiet rounds (the fastest of
   three), and those of a roofline with one figure each for compute, bandwidth and overhead.
3. A harder test without a bar: published latencies of eight networks on four ARM boards with another runtime (ncnn),
   emulated from the figures of the catalog.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, arguments, conclude, table
from claims.networks import NAMES, exported
from emulations import arm_boards, carry_over, networks, processor_time

from onefold.device import Device, TimingEffort, open_session
from onefold.device.emulated_session import input_shapes
from onefold.device.host import calibrate
from onefold.serving.export import samples_beside
from onefold.vocabulary.serving import ServingPoint

METHOD_VERSION = 2  # 1: one core of this machine alone
MAX_ERROR = 0.10  # of the one-core device at worst, and of the other machine in the median
MIN_WITHIN = 0.90  # of the points on the other machine: within 20 %
RECORDING, BATCHES = "xeon-16", (1, 8, 32)
EFFORT = TimingEffort(warm_up_runs=3, min_runs=20, max_runs=1000, max_seconds=0.4, precision=0.005)
PLAIN = """
import json, statistics, sys, time
import numpy, onnxruntime
model, samples, batch, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
arrays = numpy.load(samples)
feed = {name: numpy.resize(arrays[name], (batch, *arrays[name].shape[1:])) for name in arrays.files}
for _ in range(3):
    session.run(None, feed)
times, end = [], time.perf_counter() + seconds
while time.perf_counter() < end or len(times) < 20:
    before = time.perf_counter()
    session.run(None, feed)
    times.append(time.perf_counter() - before)
print(json.dumps(statistics.median(times)))
"""


def pinned_latency_s(model: Path, batch: int, core: int) -> float:
    """Return the median latency of plain ONNX Runtime pinned to a core."""
    command = [sys.executable, "-c", PLAIN, str(model), str(samples_beside(model)), str(batch), str(EFFORT.max_seconds)]
    ended = subprocess.run(
        ["taskset", "-c", str(core), *command], stdout=subprocess.PIPE, text=True, check=True
    )  # fmt: skip
    return float(json.loads(ended.stdout))


def one_core(here: Device, folder: Path, *, quick: bool) -> tuple[Claim, list[dict[str, Any]]]:
    """Compare an emulated one-core device with a run pinned to a core."""
    rounds, core = 3 if quick else 7, min(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    device = replace(here, name="one-core", title="One core of this machine", cores=1)
    with open_session(device, here) as session:
        for name in NAMES[:2] if quick else NAMES:
            model = exported(name, folder)
            for batch in (1, 16):
                point = ServingPoint(batch_size=batch)
                session.prepare(model, samples_beside(model), [point])
                emulated, measured = [], []
                for _ in range(rounds):
                    emulated.append(session.serve(model, point, EFFORT).latency_s)
                    measured.append(pinned_latency_s(model, batch, core))
                ratio = median(emulated) / median(measured)
                rows.append(
                    {"network": name, "batch": batch, "emulated ms": median(emulated) * 1e3,
                     "real ms": median(measured) * 1e3, "ratio": ratio}
                )  # fmt: skip
    table(rows)
    worst = max(abs(row["ratio"] - 1) for row in rows)
    return Claim("emulated one-core device against a run pinned to that core", f"within {MAX_ERROR:.0%}",
                 f"{worst:.1%} (worst of {len(rows)})", worst <= MAX_ERROR), rows  # fmt: skip


def other_machine(here: Device, folder: Path, *, quick: bool) -> tuple[list[Claim], list[dict[str, Any]]]:
    """Predict the recording of another machine from its probe and this machine's latencies."""
    names = list(networks.SUBJECTS)[:: 4 if quick else 1]
    models = [model for name in names for model in networks.write(name, folder)]
    measured = processor_time.latencies(models, BATCHES, 1 if quick else 4)
    costs = carry_over.graph_costs([(model, input_shapes(samples_beside(model))) for model in models], BATCHES)
    visits = {key: each for key, each in carry_over.recorded(RECORDING).items() if key[:2] in measured}
    target = carry_over.probed(RECORDING)
    predict = carry_over.predictor(costs, measured, here, target)
    plain = carry_over.predictor(
        costs, measured, carry_over.one_figure_each(here), carry_over.one_figure_each(target)
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for rounds, choose in (("all rounds", median), ("quiet rounds", min)):
        latency_s = {key: choose(each) for key, each in visits.items()}
        methods = {
            "probe": predict,
            "probe, int8 by other families": carry_over.with_int8_of_others(predict, latency_s),
            "one figure each": plain,
        }
        for method, made in methods.items():
            for kind, holds in KINDS.items():
                points = {key: value for key, value in latency_s.items() if holds(key)}
                rows.append(
                    {"against": rounds, "method": method, "points are": kind,
                     **carry_over.summary(carry_over.errors(made, points))}
                )  # fmt: skip
    for kind, holds in KINDS.items():
        own = carry_over.repeatability({key: each for key, each in visits.items() if holds(key)})
        rows.append({"against": "the other rounds", "method": "itself", "points are": kind, **carry_over.summary(own)})
    table(rows)
    found = next(row for row in rows if (row["method"], row["points are"]) == ("probe", "all"))
    own = next(row for row in rows if (row["method"], row["points are"]) == ("itself", "all"))
    error, share = found["median"], found["within 20%"]
    itself = f"a round of that machine from its others: {own['median']:.1%}, {own['within 20%']:.0%}"
    return [
        Claim(f"median error on a machine not used to fit ({found['points']} points)", f"at most {MAX_ERROR:.0%}",
              f"{error:.1%} ({itself})", error <= MAX_ERROR),
        Claim("its points within 20 %", f"at least {MIN_WITHIN:.0%}", f"{share:.0%}", share >= MIN_WITHIN),
    ], rows  # fmt: skip


KINDS: dict[str, Callable[[carry_over.Key], bool]] = {
    "all": lambda _: True,
    "float, 1 thread": lambda key: key[2] == 1 and not key[0].endswith("-int8"),
    "int8, 1 thread": lambda key: key[2] == 1 and key[0].endswith("-int8"),
    "float, 2 to 4 threads": lambda key: key[2] > 1 and not key[0].endswith("-int8"),
    "int8, 2 to 4 threads": lambda key: key[2] > 1 and key[0].endswith("-int8"),
}


def main() -> None:
    options = arguments(__doc__)
    here = calibrate(8.0)
    print(here.note)
    with tempfile.TemporaryDirectory() as folder:
        claims, carried = other_machine(here, Path(folder), quick=options.quick)
        boards = arm_boards.compare(Path(folder), here, 1 if options.quick else 3)
        table(boards)
        pinned, cores = one_core(here, Path(folder), quick=options.quick)
    figures = {"calibration": here.note, "other machine": carried, "ARM boards": boards, "one core": cores}
    conclude("emulation", [pinned, *claims], {"method": METHOD_VERSION, **figures}, quick=options.quick)


if __name__ == "__main__":
    main()
