"""Paths of the files of a trial in the folder of its study."""

from __future__ import annotations

from pathlib import Path

TRIALS = "trials"
LOGS = "logs"


def checkpoint_file(folder: Path, trial: int) -> Path:
    """Return the file with the state of a trial after its latest epoch."""
    return folder / TRIALS / f"{trial:05d}.pt"


def rung_weights_file(folder: Path, trial: int, rung: int) -> Path:
    """Return the file with the weights of a trial's best epoch in a rung."""
    return folder / TRIALS / f"{trial:05d}-rung{rung}.pt"


def best_weights_file(folder: Path, trial: int, rung: int) -> Path | None:
    """Return the file with the weights of a trial's best epoch up to a rung; None if there is none."""
    files = (rung_weights_file(folder, trial, lower) for lower in range(rung, -1, -1))
    return next((file for file in files if file.exists()), None)


def fork_file(folder: Path, trial: int, rung: int) -> Path:
    """Return the ONNX file of a fork after a rung."""
    return folder / TRIALS / f"{trial:05d}-rung{rung}.onnx"


def trial_files(folder: Path, trial: int) -> list[Path]:
    """Return all files of a trial: its checkpoint, and of each rung the best weights or the file of the fork."""
    return sorted((folder / TRIALS).glob(f"{trial:05d}[.-]*"))


def log_file(folder: Path, trial: int) -> Path:
    """Return the file with the tracebacks of a trial's failures."""
    return folder / LOGS / f"{trial:05d}.log"


def function_folder(folder: Path, trial: int) -> Path:
    """Return the folder in which a plain function may keep state between the rungs of a trial."""
    return folder / TRIALS / f"{trial:05d}"


def function_knobs_file(folder: Path, trial: int) -> Path:
    """Return the file with the knobs that a plain function keeps for its later rungs."""
    return folder / TRIALS / f"{trial:05d}-knobs.json"
