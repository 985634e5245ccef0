"""Record the latencies of ONNX files on a machine: a single-file program that needs numpy and onnxruntime.

    python record.py FOLDER recording.json --seconds 200

Every model of the folder is served at batch sizes 1, 8 and 32 on 1 to 4 threads, each bound to as many cores. They are
visited in random order, several times over the whole duration, so that a disturbance hits single visits of many points
rather than all visits of one. The recording has the median of each visit and how many cores were busy with it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

BATCHES, THREADS = (1, 8, 32), (1, 2, 3, 4)
MIN_RUNS, MAX_RUNS, VISIT_S = 5, 400, 0.06
WARM_UP_RUNS = 2


def main() -> None:
    """Record and write the file after every round, so that an interrupted recording is of use too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no round that would end later")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, cores = time.monotonic(), sorted(os.sched_getaffinity(0))
    models = sorted(options.folder.glob("*.onnx"))
    sessions = [(model, threads) for model in models for threads in THREADS if threads <= len(cores)]
    visits: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    rng, rounds, longest = random.Random(options.seed), 0, 0.0
    while rounds == 0 or time.monotonic() - began + longest < options.seconds:
        started = time.monotonic()
        for model, threads in rng.sample(sessions, len(sessions)):
            os.sched_setaffinity(0, cores[:threads])
            session, samples = open_model(model, threads)
            for batch in rng.sample(BATCHES, len(BATCHES)):
                visits.setdefault((model.stem, batch, threads), []).append(visit(session, samples, batch))
            os.sched_setaffinity(0, cores)
        rounds, longest = rounds + 1, max(longest, time.monotonic() - started)
        print(f"round {rounds}: {time.monotonic() - started:.0f} s", flush=True)
        write(options.output, visits, rounds)


def open_model(model: Path, threads: int) -> tuple[ort.InferenceSession, dict[str, Any]]:
    """Return the session of a model and its samples."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    with np.load(model.with_suffix(".npz")) as arrays:
        samples = {name: arrays[name] for name in arrays.files}
    return ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"]), samples


def visit(session: ort.InferenceSession, samples: dict[str, Any], batch: int) -> dict[str, Any]:
    """Serve a batch for a moment; return the median latency and how many cores were busy with it."""
    feed = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in samples.items()}
    for _ in range(WARM_UP_RUNS):
        session.run(None, feed)
    times: list[float] = []
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    while len(times) < MIN_RUNS or (len(times) < MAX_RUNS and time.perf_counter() - wall_s < VISIT_S):
        before = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - before)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {
        "median_s": _rounded(statistics.median(times)), "least_s": _rounded(min(times)), "runs": len(times),
        "cores": round(cpu_s / wall_s, 2),
    }  # fmt: skip


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def write(path: Path, visits: dict[tuple[str, int, int], list[dict[str, Any]]], rounds: int) -> None:
    """Write the recording."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    document = {
        "onefold_recording": 1,
        "machine": {"processor": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "runtime": f"onnxruntime {ort.__version__}",
        "rounds": rounds,
    }
    points = [
        json.dumps({"model": model, "batch": batch, "threads": threads, "visits": seen})
        for (model, batch, threads), seen in sorted(visits.items())
    ]
    lines = ",\n".join(points)
    path.write_text(f'{json.dumps(document)[:-1]}, "points": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
