"""Retraining: predicted and real peak memory of random plans, and a memory limit that is halved in the middle.

Everything is measured from outside, by a program that imports neither torch nor numpy, since a child process inherits
the high-water mark of its parent. Each retraining is a separate process that runs the real command.

Predictions: networks of four architectures with random weights, and random plans with batch sizes from 1 to 256. The
network is profiled as in a retraining, and memory is predicted before any step of any plan, without lessons or
corrections. Three updates of two batches each follow. Their peak is the high-water mark of the process at its end; the
mark is reset just before the first update, so that earlier peaks, of importing torch and of profiling, cannot hide that
of the plan. The error is also shown for the memory that the plan adds, without the constant part of Python and torch,
which makes any prediction look accurate.

Halved: the same retraining twice, interleaved, once undisturbed. The limit is 50 or 100 MB above the least memory that
the command reports to need. In the other run the data limit of the process is lowered from outside after half of the
window, so that half of the memory above that of the process itself is left. Memory is compared with the new limit from
one second later on, since that limit counts address space. The data is synthetic, patterns in noise with inverted
brightness: gains are so large that a tenth of them is no noise. If a control group is delegated in $ONEFOLD_CGROUP, the
kernel enforces the given limit too, by killing. With `--state FOLDER`, an interrupted run continues with its first
unfinished measurement.

All processes run on one core, unless $OMP_NUM_THREADS is set, one at a time; the machine should be otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from claims import RESULTS, Claim, conclude, table
from claims.journal import Journal, open_journal
from retrainings.watch import REACTION_S, ProcessRun, field, kernel_limit, run_watched

METHOD_VERSION = 2  # other networks have their limit halved since
MEDIAN_ERROR, WORST_ERROR = 0.05, 0.10
KEPT_GAIN = 0.90  # share of the gain of the undisturbed run
HALVED_S, QUICK_HALVED_S = 40.0, 16.0
MARGINS_BYTES = (50_000_000, 100_000_000)  # above the least memory
PARTS = ("predictions", "halved")
IMAGE_WORKLOADS = ("cifar10", "cifar10-mobilenet", "cifar10-vit")
WORKLOADS = (*IMAGE_WORKLOADS, "newsgroups-lstm")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller run, under five minutes")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="measure these parts again; keep the results of the others"
    )
    parser.add_argument("--state", type=Path, help="folder of the finished measurements; by default a new one")
    options = parser.parse_args()
    quick: bool = options.quick
    figures = _last_figures(quick) if options.only else {}
    parts = options.only or PARTS
    with open_journal(options.state, quick=quick) as journal:
        if "predictions" in parts:
            figures["predictions"] = predictions(random.Random(1), 10 if quick else 60, journal)
        if "halved" in parts:
            with tempfile.TemporaryDirectory() as folder:
                models = PatternModels(Path(folder), IMAGE_WORKLOADS[:1] if quick else IMAGE_WORKLOADS)
                window_s = QUICK_HALVED_S if quick else HALVED_S
                figures["halved"] = halvings(models, 1 if quick else 6, journal, window_s)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    figures |= {
        "measured": {**figures.get("measured", {}), **dict.fromkeys(parts, now)}, "kernel limit": kernel_limit(),
        "watcher_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
    claims = [*prediction_claims(figures["predictions"]), *halving_claims(figures["halved"])]
    conclude("retraining_limits", claims, figures, quick=quick)


def _last_figures(quick: bool) -> Row:
    """Return the figures of the last run."""
    content = json.loads((RESULTS / f"retraining_limits{'-quick' * quick}.json").read_text())
    return dict(content["figures"])


def _run_child(file: str, *arguments: str) -> ProcessRun:
    """Run a program of `retrainings/`, which may import torch."""
    process = run_watched([str(Path(__file__).parent / "retrainings" / file), *arguments])
    if process.exit_code != 0:
        sys.exit(f"{file} {' '.join(arguments)} ended with {process.exit_code}: {process.stderr}")
    return process


# Predicted memory ---------------------------------------------------------------------------------------------------


def predictions(rng: random.Random, count: int, journal: Journal) -> list[Row]:
    """Compare predicted with measured memory for random plans of all workloads in turn."""
    rows = []
    for number in range(count):
        name, seed = WORKLOADS[number % len(WORKLOADS)], rng.randrange(2**31)
        rows.append(journal.section(f"prediction {number + 1} of {count}", dict, partial(_prediction, name, seed)))
        _print_row(rows[-1])
    table(rows)
    return rows


def _prediction(name: str, seed: int) -> Row:
    process = _run_child("random_plan.py", name, str(seed))
    row = process.result
    added, held = row["predicted_bytes"] - row["held_bytes"], row["held_bytes"]
    return {
        "model": row["model"], "batch": row["batch_size"], "frozen": row["freeze_rate"],
        "segments": row["segments"], "optimizer": row["optimizer"], "held MB": held / 1e6,
        "before MB": row["before_bytes"] / 1e6, "predicted MB": row["predicted_bytes"] / 1e6,
        "measured MB": process.high_water_bytes / 1e6, "error": row["predicted_bytes"] / process.high_water_bytes - 1,
        "error of added": added / max(1, process.high_water_bytes - held) - 1,
    }  # fmt: skip


def prediction_claims(rows: list[Row]) -> list[Claim]:
    """Return the claims about the errors of predicted memory."""
    errors = [abs(row["error"]) for row in rows]
    added = [abs(row["error of added"]) for row in rows]
    middle, worst = median(errors), max(errors)
    row = max(rows, key=lambda row: abs(row["error"]))
    return [
        Claim(f"peak memory predicted before any step, {len(rows)} plans: median error", f"<= {MEDIAN_ERROR:.0%}",
              f"{middle:.1%} ({median(added):.1%} of what the plan adds)", middle <= MEDIAN_ERROR),
        Claim("… worst error", f"<= {WORST_ERROR:.0%}", f"{worst:.1%} ({row['model']}, batch {row['batch']})",
              worst <= WORST_ERROR),
    ]  # fmt: skip


# Models and data to retrain -----------------------------------------------------------------------------------------


class PatternModels:
    """Models of synthetic patterns and new data for them, in a folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names
        _run_child("pattern_models.py", str(folder), *names)

    def model(self, name: str) -> Path:
        """Return the folder of a model."""
        return self.folder / "models" / name

    def data(self, name: str) -> Path:
        """Return the folder of new data for a model."""
        return self.folder / "data" / name

    def new_folder(self) -> Path:
        """Return a new, empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))


# A limit that is halved during retraining --------------------------------------------------------------------------


def halvings(models: PatternModels, count: int, journal: Journal, window_s: float) -> list[Row]:
    """Retrain each model in turn, once undisturbed and once with a limit that is halved in the middle."""
    rows = []
    for number in range(count):
        rows.append(
            journal.section(f"halved {number + 1} of {count}", dict, partial(_halving, models, number, window_s))
        )
        _print_row(rows[-1])
    table([{key: value for key, value in row.items() if key != "said"} for row in rows])
    return rows


def _halving(models: PatternModels, number: int, window_s: float) -> Row:
    name = models.names[number % len(models.names)]
    model, data = models.model(name), models.data(name)
    margin = MARGINS_BYTES[number // len(models.names) % len(MARGINS_BYTES)]
    limit = _least_memory(model, data, models.new_folder()) + margin
    undisturbed = _retrain(model, data, models.new_folder(), limit, window_s, models.new_folder())
    held = round((undisturbed["held MB"] or 0) * 1e6)
    lowered: Row = {}

    def halve(pid: int) -> None:
        used, data = field(pid, "VmRSS"), field(pid, "VmData")
        lowered["left"] = held + (limit - held) // 2
        data_limit = data - used + lowered["left"]
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (data_limit, hard))

    intervention = {"intervene_at_s": window_s / 2, "intervene": halve}
    disturbed = _retrain(model, data, models.new_folder(), limit, window_s, models.new_folder(), **intervention)
    gains = [(row["after"] or 0.0) - (row["before"] or 0.0) for row in (undisturbed, disturbed)]
    return {
        "model": model.name, "window s": window_s, "limit MB": limit / 1e6, "held MB": held / 1e6,
        "left MB": lowered.get("left", 0) / 1e6 or None, "status": disturbed["status"],
        "wall s": disturbed["wall s"], "peak MB": disturbed["peak MB"], "later MB": disturbed["later MB"],
        "windows": disturbed["windows"], "quiet plan": undisturbed["plan"],
        "plan": disturbed["plan"], "reactions": disturbed["reactions"], "before": undisturbed["before"],
        "gain by half": disturbed["by half"], "quiet gain": gains[0], "gain": gains[1], "said": disturbed["said"],
    }  # fmt: skip


def halving_claims(rows: list[Row]) -> list[Claim]:
    """Return the claims about retrainings whose memory limit was halved."""
    killed = [row for row in rows if row["status"] < 0]
    failed = [row for row in rows if row["status"] > 0]
    undisturbed = [row for row in rows if row["left MB"] is None]
    lost = [row for row in rows if not (row["gain"] > 0 and row["gain"] >= KEPT_GAIN * row["quiet gain"])]
    changed = [row for row in rows if "memory" in row["reactions"]]
    later = [row["later MB"] / row["left MB"] for row in rows if row["later MB"] and row["left MB"]]
    shares = [row["gain"] / row["quiet gain"] for row in rows if row["quiet gain"] > 0]
    return [
        Claim(f"the limit halved in the middle, {len(rows)} retrainings: killed", "0",
              f"{len(killed)} ({len(changed)} had to plan anew, {len(undisturbed)} were over before)", not killed),
        Claim("… ended without a model, to be started again", "0", str(len(failed)), not failed),
        Claim(f"… over what was left, {REACTION_S:g} s later", "0",
              f"{sum(share > 1 for share in later)} of {len(later)} (at most {max(later, default=0.0):.1%} of it)",
              bool(later) and max(later) <= 1),
        Claim("… gain kept", f">= {KEPT_GAIN:.0%} of the undisturbed one in all",
              f"{len(rows) - len(lost)} of {len(rows)} (least {min(shares, default=0.0):.0%})", not lost),
    ]  # fmt: skip


def _command(model: Path, data: Path, home: Path, *options: str) -> list[str]:
    return ["-m", "onefold.cli", "retrain", str(model), "--data", str(data), "--home", str(home), "--json", *options]


def _least_memory(model: Path, data: Path, home: Path) -> int:
    """Return the least memory that the command reports to need."""
    process = run_watched(_command(model, data, home, "--plan-only", "--memory", "1MB"))
    least = re.search(r"Set memory to (\d+)MiB", " ".join(process.stderr.split()))
    if process.exit_code != 2 or least is None:
        sys.exit(f"the least memory of {model.name} is not reported: {process.exit_code}, {process.stderr}")
    return int(least[1]) * 2**20


def _retrain(model: Path, data: Path, home: Path, limit: int, window_s: float, save: Path, **intervention: Any) -> Row:
    limits = ["--memory", str(limit), "--window", f"{window_s:.2f}s", "--save", str(save)]
    process = run_watched(_command(model, data, home, *limits), limit=limit, **intervention)
    row = process.result
    return {
        "status": process.exit_code, "peak MB": max(process.peak_bytes, row.get("peak_bytes") or 0) / 1e6,
        "later MB": process.later_bytes / 1e6 or None, "wall s": process.wall_s, "before": row.get("before"),
        "after": row.get("after"), "windows": len(row.get("windows", ())),
        "held MB": row.get("held_bytes", 0) / 1e6 or None, "plan": _plan(row.get("chosen")),
        "reactions": ", ".join(reaction["rule"] for reaction in row.get("reactions", ())),
        "by half": _gain_by_half(row, window_s), "said": _error_message(process.stderr),
    }  # fmt: skip


def _error_message(stderr: str) -> str:
    """Return the error message of a process on one line; of a traceback, the location and the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = [*(f"{line}; " for line in lines[:-1] if "/src/onefold/" in line)][-5:] + lines[-1:]
    text = re.sub(r"/[^\s\"]*/src/(?=onefold/)", "", " ".join(lines))
    return re.sub(r"(?<![\w.])/[^\s\"]*/(?=[^\s/])", "", text)  # without the folders of this machine


def _gain_by_half(row: Row, window_s: float) -> float | None:
    """Return the best gain in the first half of the window, by the evaluations of micro-windows."""
    scores = [
        window["score"] for window in row.get("windows", ()) if window["ended_s"] <= window_s / 2 and window["score"]
    ]
    return max(scores) - row["before"] if scores else None


def _plan(row: Row | None) -> str | None:
    if row is None:
        return None
    return f"{row['batch_size']}x{row['accumulation']}/{row['freeze_rate']:.2f}/{row['segments']}"


def _print_row(row: Row) -> None:
    shown = {key: value for key, value in row.items() if value not in (None, "")}
    settings = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()]
    print(", ".join(settings), flush=True)


if __name__ == "__main__":
    main()
