"""Accuracy of the emulator: an emulated one-core device against plain ONNX Runtime pinned to one core.

The emulated device has one core with the calibrated figures of this machine. The reference is a program without
Onefold: plain ONNX Runtime, pinned to the core by taskset. Six networks at batch sizes 1 and 16, interleaved; medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, arguments, conclude, table
from claims.networks import NAMES, exported

from onefold.device import TimingEffort, open_session
from onefold.device.host import host
from onefold.serving.export import samples_beside
from onefold.vocabulary.serving import ServingPoint

MAX_ERROR = 0.10
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


def main() -> None:
    options = arguments(__doc__)
    rounds = 3 if options.quick else 7
    core = min(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        here = host(Path(folder), seconds=4.0)
        device = replace(here, name="one-core", title="One core of this machine", cores=1)
        with open_session(device, here) as session:
            for name in NAMES[:2] if options.quick else NAMES:
                model = exported(name, Path(folder))
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
                    table(rows[-1:])
    table(rows)
    worst = max(abs(row["ratio"] - 1) for row in rows)
    claim = Claim("emulated one-core device against a run pinned to that core", f"within {MAX_ERROR:.0%}",
                  f"{worst:.1%} (worst of {len(rows)})", worst <= MAX_ERROR)  # fmt: skip
    conclude("emulation", [claim], rows, quick=options.quick)


if __name__ == "__main__":
    main()
