"""Accuracy gain of retraining on corrupted CIFAR-10 under equal limits, against eight other plan strategies.

Three networks trained on clean images (a ResNet, MobileNetV2 and a small vision transformer) are retrained on six
corruptions at severity 5. Each run is a separate process on one core, with the same new data (3,200 images that the
network has not seen, a fifth of which the retraining holds out for validation), the same memory limit and the same
window. The window is the time that `static` takes for three epochs over the new data, as published (35 s per epoch in a
window of 110 s), measured first. The limit is 300 MB above the memory of a process that has opened the model.

All strategies share the mechanisms: gradient accumulation, freezing, checkpoint segments, the allocator, and the rule
that the given model is kept unless another one is better. The baselines use an effective batch of 256 samples with the
matching learning rate, as published; oom-retry runs under a real limit of the process. Accuracy is that of the returned
model on 2,000 test images that no run sees. Peak memory is the high-water mark of the process during retraining;
retraining_limits.py measures it from outside.

Each run is recorded when it ends, so that an interrupted benchmark can be resumed.

At equal accuracy: the time until a run of onefold first reached, on its validation data, the final accuracy of a
baseline; and the peak memory of onefold with the limit lowered to 40 MB above the memory of the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from claims import Claim, conclude, table

STRATEGIES = ("onefold", "static", "dgc", "dga", "sage", "bayesian", "oom-retry", "last-layer", "fixed")
OTHERS = STRATEGIES[1:]
MODELS = ("cifar10", "cifar10-mobilenet", "cifar10-vit")
KINDS = ("gaussian_noise", "shot_noise", "fog", "saturate", "frost", "gaussian_blur")
SEEDS = (0, 1, 2)
ROOM_MB, TIGHT_MB, PASSES = 300, 40, 3  # above the memory of the process; epochs of `static` per window
ABOVE_MEAN, LESS = 5.0, 2.0
SCORED = 8  # test images per batch: evaluation must not need more memory than retraining


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller run, under five minutes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds, at most three")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="number of parallel runs")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "onefold" / "benchmarks")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(**json.loads(options.one))))
        return
    from claims.sources import EPOCHS, shifted, source_model

    models, kinds, seeds = (MODELS[:1], KINDS[:2], (0,)) if options.quick else (MODELS, KINDS, SEEDS[: options.seeds])
    folder = options.folder / ("quick" if options.quick else "full")
    sources = [source_model(name, folder, 3 if options.quick else EPOCHS) for name in models]
    shifts = [shifted(kind, folder) for kind in kinds]
    journal = Journal(folder / "runs.jsonl", folder)
    copies = range(-(-options.cores // len(sources)))  # as many in parallel as in the comparison
    trials = [_case(model, shifts[0], at, "static", 4000, 12.0) for at in copies for model in sources]
    first = run_all(trials, options.cores, journal)
    cases = []
    for model in sources:
        mine = [row for row in first if row["model"] == model.name]
        window_s = PASSES * statistics.median(row["new"] * row["busy_s"] / row["samples"] for row in mine)
        held_mb = statistics.median(row["held_mb"] for row in mine)
        print(f"{model.name}: a window of {window_s:.1f} s; the process holds {held_mb:.0f} MB", flush=True)
        for new in shifts:
            for seed in seeds:
                cases += [_case(model, new, seed, how, held_mb + ROOM_MB, window_s) for how in STRATEGIES]
            cases.append(_case(model, new, 0, "onefold", held_mb + TIGHT_MB, window_s))
    compare(run_all(cases, options.cores, journal), quick=options.quick)
    journal.path.unlink()


def _case(model: Path, data: Path, seed: int, strategy: str, memory_mb: float, window_s: float) -> dict[str, Any]:
    return {
        "model": model.name, "data": data.name, "seed": seed, "strategy": strategy, "memory_mb": round(memory_mb),
        "window_s": round(window_s, 1),
    }  # fmt: skip


class Journal:
    """The finished runs, in a file beside the models."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {_key(row): row for row in map(json.loads, lines)}

    def add(self, row: dict[str, Any]) -> None:
        self.rows[_key(row)] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _key(case: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(case[name] for name in ("model", "data", "seed", "strategy", "memory_mb", "window_s"))


def run_all(cases: list[dict[str, Any]], cores: int, journal: Journal) -> list[dict[str, Any]]:
    """Run each case in a separate process on its own core, with the strategies interleaved."""
    free: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[:cores]:
        free.put(core)
    left = [case for case in cases if _key(case) not in journal.rows]
    began, done = time.monotonic(), itertools.count(1)

    def run(case: dict[str, Any]) -> None:
        core = free.get()
        try:
            journal.add({**case, **_measured(case, journal.folder, core)})
        finally:
            free.put(core)
        if (number := next(done)) % 20 == 0:
            print(f"{number} of {len(left)} runs, {time.monotonic() - began:.0f} s", flush=True)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(run, left))
    return [journal.rows[_key(case)] for case in cases]


def _measured(case: dict[str, Any], folder: Path, core: int) -> dict[str, Any]:
    order = {**case, "model": str(folder / case["model"]), "data": str(folder / case["data"])}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-W", "ignore", __file__, "--one", json.dumps(order)],
            env=environment, stdout=output, stderr=errors, text=True,
        )  # fmt: skip
        process.wait()
        output.seek(0)
        errors.seek(0)
        said, complaints = output.read(), errors.read()
    if process.returncode == 0:
        return {"status": 0, **json.loads(said.splitlines()[-1])}
    return {"status": process.returncode, "failure": complaints.strip().splitlines()[-1:] or ["killed"]}


def one(model: str, data: str, seed: int, strategy: str, memory_mb: int, window_s: float) -> dict[str, Any]:
    """Run a case in this process."""
    import torch

    torch.set_num_threads(1)
    import onefold
    import onefold.baselines.retraining  # registers the strategies to compare with
    from onefold.datasets import read_data
    from onefold.model_folder import open_folder
    from onefold.training.trained_model import load_network
    from onefold.vocabulary.errors import InputError

    network, workload, config = load_network(open_folder(model, trust=True))
    parts = read_data(data)

    def accuracy() -> float:
        inputs, targets = parts.test
        right = 0
        with torch.no_grad():
            for start in range(0, len(targets), SCORED):
                rows = slice(start, start + SCORED)
                right += int((network(torch.as_tensor(inputs[rows])).argmax(1) == torch.as_tensor(targets[rows])).sum())
        return 100 * right / len(targets)

    before = accuracy()
    if strategy == "oom-retry":
        _limit(memory_mb)
    try:
        with tempfile.TemporaryDirectory() as home:  # without the memory measurements of other runs
            options = onefold.RetrainingOptions(strategy=strategy, config=config, seed=seed, home=home)
            result = onefold.retrain(
                network, onefold.Data(parts.train), memory=f"{memory_mb}MB", window=window_s, workload=workload,
                options=options,
            )  # fmt: skip
    except InputError as error:
        return {"before": before, "after": before, "gain": 0.0, "refused": str(error)}
    summary = result.summary
    network.eval()
    after = accuracy()
    reached = [(w.ended_s, w.score) for w in summary.windows if w.score is not None]
    return {
        "before": before, "after": after, "gain": after - before, "kept back": summary.after, "reached": reached,
        "elapsed_s": summary.elapsed_s, "planning_s": summary.planning_s,
        "busy_s": sum(w.ended_s - w.began_s for w in summary.windows), "new": round(0.8 * len(parts.train[-1])),
        "updates": sum(w.updates for w in summary.windows), "samples": sum(w.samples for w in summary.windows),
        "plan": str(summary.chosen), "held_mb": summary.held_bytes / 1e6,
        "peak_mb": (summary.peak_bytes or 0) / 1e6,
    }  # fmt: skip


def _limit(memory_mb: int) -> None:
    """Limit the private memory of this process; memory mapped from files does not count."""
    import resource

    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    used, data = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmData"))
    most = data + memory_mb * 10**6 - used
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def compare(rows: list[dict[str, Any]], *, quick: bool) -> None:
    most = {row["model"]: row["memory_mb"] for row in rows if row["strategy"] == "static"}
    wide = [row for row in rows if row["memory_mb"] == most[row["model"]]]
    tight = [row for row in rows if row["memory_mb"] != most[row["model"]]]
    by = {how: [row for row in wide if row["strategy"] == how] for how in STRATEGIES}
    gains = {how: _mean(by[how], "gain") for how in STRATEGIES}
    table([_line(how, by[how]) for how in STRATEGIES] + [_line("onefold, drawn in", tight)])
    best = max(OTHERS, key=lambda how: gains[how])
    mean, others = statistics.mean(gains[how] for how in OTHERS), _all(by, OTHERS)
    ours, drawn_in = gains["onefold"], _mean(tight, "gain")
    times = _times(by)
    peaks = _mean(others, "peak_mb") / _mean(tight, "peak_mb")
    above = _mean(others, "above_mb") / _mean(tight, "above_mb")
    conclude(
        "retraining",
        [
            Claim("mean accuracy gain against every comparator", "above all",
                  f"{ours:.1f} points; the best of them ({best}) {gains[best]:.1f}", ours > gains[best]),
            Claim("mean accuracy gain above the mean of the comparators", f">= {ABOVE_MEAN:g} points",
                  f"{ours - mean:.1f} ({ours:.1f} against {mean:.1f})", ours - mean >= ABOVE_MEAN),
            Claim("time at equal accuracy", f">= {LESS:g}x less", f"{times:.1f}x", times >= LESS),
            Claim("peak memory of the process at equal or better accuracy", f">= {LESS:g}x less",
                  f"{peaks:.2f}x; above what it held {above:.1f}x; gain {drawn_in:.1f} against {mean:.1f}",
                  peaks >= LESS and drawn_in >= mean),
        ],
        rows,
        quick=quick,
    )  # fmt: skip


def _line(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        row["above_mb"] = max(0.0, row.get("peak_mb", 0.0) - row.get("held_mb", 0.0))
    return {
        "strategy": name, "runs": len(rows), "failed": sum(row["status"] != 0 for row in rows),
        "over limit": sum(row.get("peak_mb", 0.0) > row["memory_mb"] for row in rows),
        "mean gain": _mean(rows, "gain"), "after": _mean(rows, "after"), "peak MB": _mean(rows, "peak_mb"),
        "above MB": _mean(rows, "above_mb"), "updates": _mean(rows, "updates"), "samples": _mean(rows, "samples"),
        "elapsed s": _mean(rows, "elapsed_s"), "planning s": _mean(rows, "planning_s"),
    }  # fmt: skip


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    """Return the mean; a failed run has a gain of 0, and its other values are unknown."""
    known = [row.get("gain", 0.0) if key == "gain" else row[key] for row in rows if key == "gain" or key in row]
    return statistics.mean(known) if known else 0.0


def _all(by: dict[str, list[dict[str, Any]]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [row for name in names for row in by[name]]


def _times(by: dict[str, list[dict[str, Any]]]) -> float:
    """Return the mean time of the baselines relative to the mean time of onefold to the same accuracy.

    Runs without a gain are left out.
    """
    ours, theirs = [], []
    mine = {(row["model"], row["data"], row["seed"]): row for row in by["onefold"]}
    for row in _all(by, OTHERS):
        own = mine[row["model"], row["data"], row["seed"]]
        if row.get("gain", 0.0) <= 0 or "reached" not in own:
            continue
        first = next((at for at, score in own["reached"] if score >= row["kept back"]), None)
        ours.append(first if first is not None else own["elapsed_s"])
        theirs.append(row["elapsed_s"])
    return statistics.mean(theirs) / statistics.mean(ours) if ours else 0.0


if __name__ == "__main__":
    main()
