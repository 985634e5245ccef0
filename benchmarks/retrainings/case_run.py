"""Run a case: the real command on a copy of a served folder, watched from outside, then scored on test images."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrainings.cases import NATURAL, NEW_SAMPLES, ONEFOLD, SEVERITY, Case
from retrainings.watch import ProcessRun, neighbor, run_watched

HERE = Path(__file__).parent
WEIGHTS = "weights.safetensors"
REFUSED = 2  # exit code of a refusal
Row = dict[str, Any]


class CaseRunner:
    """Runs cases in a folder that keeps the models, the new data and the homes with a history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, name: str) -> Path:
        """Return the folder of a model to retrain."""
        return self.folder / name

    def data(self, case: Case) -> Path:
        """Return the folder of the new data and the test images of a case."""
        return self.folder / "data" / case.shift

    def train(self, name: str, core: int) -> None:
        """Train a model on clean images, unless that was done."""
        with self._lock(name):
            if not (self.model(name) / "manifest.json").is_file():
                print(f"training {name} on clean images", flush=True)
                print(_run("sources.py", name, str(self.folder), core=core).strip(), flush=True)

    def run(self, case: Case, core: int) -> Row:
        """Run a case on a core, and return what was measured."""
        self._write_data(case.domain, case.severity, core)
        new = self.data(case) / f"new-{NEW_SAMPLES[case.model]}"
        with self._scratch_folder() as scratch:
            target = scratch / "deploy"
            shutil.copytree(self.model(case.model), target)
            home = self.folder / "homes" / case.model if case.has_history else scratch / "home"
            limits = ["--memory", f"{case.memory_mb}MB", "--window", f"{case.window_s}s"]
            command = _command(target, new, "--home", str(home), "--strategy", case.strategy, *limits)
            with neighbor(core) if case.is_busy else nullcontext():
                process = run_watched(command, core=core, limit=case.memory_mb * 10**6)
            row = {"key": case.key, **asdict(case), **_measurements(process)}
            if process.exit_code == 0:
                row |= self._score(case, target, core)
            elif process.exit_code == REFUSED and case.strategy == ONEFOLD:
                row["least_mb"] = self._least_mb(target, new, scratch, core)
            return row

    def _write_data(self, domain: str, severity: int, core: int) -> Path:
        """Write new data and test images, unless they are there; return their folder."""
        folder = self.folder / "data" / f"{domain}-{severity}"
        counts = sorted(set(NEW_SAMPLES.values()))
        with self._lock("data"):
            if not all((folder / f"new-{count}" / "targets.npy").is_file() for count in counts):
                _run("shifts.py", str(folder.parent), domain, str(severity), *map(str, counts), core=core)
        return folder

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Keep other threads and processes from writing the same files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        running = self.folder / "running"
        running.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=running) as scratch:
            yield Path(scratch)

    def _score(self, case: Case, target: Path, core: int) -> Row:
        """Return how many test images the given model classifies correctly, and how many were won and lost."""
        given = self.model(case.model)
        is_same = _digest(target / WEIGHTS) == _digest(given / WEIGHTS)
        tests = [f"old={self._write_data(NATURAL, SEVERITY, core) / 'test.npz'}", f"new={self.data(case) / 'test.npz'}"]
        model = str(given if is_same else target)
        return dict(json.loads(_run("score.py", model, str(given), *tests, core=core)))

    def _least_mb(self, model: Path, new: Path, scratch: Path, core: int) -> float | None:
        """Return the least memory that the command reports to need."""
        options = ["--home", str(scratch / "other-home"), "--plan-only", "--memory", "1MB"]
        process = run_watched(_command(model, new, *options), core=core)
        least = re.search(r"Set memory to (\d+)MiB", " ".join(process.stderr.split()))
        return None if least is None else int(least[1]) * 2**20 / 1e6


def _command(model: Path, new: Path, *options: str) -> list[str]:
    return ["-m", "onefold.cli", "retrain", str(model), "--data", str(new), "--trust", "--json", *options]


def _measurements(process: ProcessRun) -> Row:
    """Return what was measured from outside, and the main results that the command reports."""
    row: Row = {
        "status": process.exit_code, "wall_s": round(process.wall_s, 2), "peak_mb": round(process.peak_bytes / 1e6, 1)
    }  # fmt: skip
    if process.exit_code != 0:
        return row | {"said": _error_message(process.stderr)}
    report, windows = process.result, process.result["windows"]
    chosen = report["chosen"] or {}
    return row | {
        "kept_new": report["kept_new"], "before": report["before"], "after": report["after"],
        "reference": [report.get("reference_before"), report.get("reference_after")],
        "reported_s": round(report["elapsed_s"], 2), "reported_mb": round((report["peak_bytes"] or 0) / 1e6, 1),
        "first_update_s": _rounded(report["first_update_s"]),
        "first_window_s": _rounded(windows[0]["began_s"] if windows else None),
        "windows": len(windows), "plans": len({str(window["plan"]) for window in windows}),
        "updates": sum(window["updates"] for window in windows),
        "samples": sum(window["samples"] for window in windows),
        "plan": [chosen.get(name) for name in ("batch_size", "accumulation", "freeze_rate", "segments", "lr")],
        "reactions": [reaction["rule"] for reaction in report["reactions"]],
    }  # fmt: skip


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _error_message(stderr: str) -> str:
    """Return an error message on one line, without folders; of a traceback, the last lines."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    text = " ".join(lines[-5:] if any(line.startswith("Traceback") for line in lines) else lines)
    return re.sub(r"(?<![\w.])/[^\s\"]*/(?=[^\s/])", "", text)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(file: str, *arguments: str, core: int) -> str:
    """Run a file of this package to its end, and return its output."""
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / file), *arguments]
    process = subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, text=True)
    if process.returncode != 0:
        raise RuntimeError(f"{file} {' '.join(arguments)} ended with {process.returncode}: {process.stderr}")
    return process.stdout
