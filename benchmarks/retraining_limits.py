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
kernel enforces the given limit too, by killing. With `--state FILE` an interrupted run continues where it was.

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
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from claims import RESULTS, Claim, conclude, median, table
from retrainings.watch import REACTS_S, Ran, field, kernel_limit, watched

MEDIAN, WORST = 0.05, 0.10
KEPT = 0.90
MAX_PLAN_BYTES = 3_000_000_000  # maximum predicted memory of a random plan
HALVED_S, QUICK_HALVED_S = 40.0, 16.0
ROOM = (50_000_000, 100_000_000)  # bytes above the least memory
PARTS = ("predictions", "halved")
PICTURES = ("cifar10", "cifar10-mobilenet", "cifar10-vit")
WORDS = "newsgroups-lstm"
FAMILIES = (*PICTURES, WORDS)
LARGE: dict[str, dict[str, Any]] = {
    "cifar10": {"depth": 14, "width": 24},
    "cifar10-mobilenet": {"width": 1.0},
    "cifar10-vit": {"width": 96, "depth": 3},
}
NOISE = {"cifar10": 8.0, "cifar10-mobilenet": 4.5, "cifar10-vit": 1.8}  # each still improves after half of the window
LENGTH, VOCABULARY, CLASSES = 200, 20_000, dict.fromkeys(PICTURES, 10) | {WORDS: 20}
OLD = 2000  # samples of the original training
NEW = 2400  # new samples, of which a retraining holds out a fifth
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller run, under five minutes")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="measure these parts again; keep the results of the others"
    )
    parser.add_argument(
        "--state", type=Path, help="file with the rows that are done: an interrupted run continues from there"
    )
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child](**json.load(sys.stdin))))
        return
    quick: bool = options.quick
    state = State(options.state)
    figures = _earlier(quick) if options.only else {}
    asked = options.only or PARTS
    if "predictions" in asked:
        figures["predictions"] = predictions(random.Random(1), 10 if quick else 60, state)
    if "halved" in asked:
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), quick)
            figures["halved"] = halvings(place, 1 if quick else 6, state, QUICK_HALVED_S if quick else HALVED_S)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    figures |= {
        "measured": {**figures.get("measured", {}), **dict.fromkeys(asked, now)}, "kernel limit": kernel_limit(),
        "watcher_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
    claims = [*predicted(figures["predictions"]), *survived(figures["halved"])]
    conclude("retraining_limits", claims, figures, quick=quick)
    state.remove()


def _earlier(quick: bool) -> Row:
    """Return the results of the last run."""
    content = json.loads((RESULTS / f"retraining_limits{'-quick' * quick}.json").read_text())
    return dict(content["figures"])


class State:
    """The rows that are done, one JSON line each, in a file that an interrupted run continues from."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.rows: dict[str, Row] = {line["key"]: line["row"] for line in map(json.loads, lines)}

    def row(self, part: str, number: int, measure: Callable[[], Row]) -> Row:
        """Return a row that is done, or measure it and keep it."""
        key = f"{part} {number}"
        if key not in self.rows:
            self.rows[key] = measure()
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps({"key": key, "row": self.rows[key]}) + "\n")
        return self.rows[key]

    def remove(self) -> None:
        """Remove the file: the run is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def child(called: str, **order: Any) -> Ran:
    """Run a function of this program in a child process, which may import torch."""
    ran = watched([__file__, "--child", called], order)
    if ran.status != 0:
        sys.exit(f"{called} {order} ended with {ran.status}: {ran.complaint}")
    return ran


# Predicted memory ---------------------------------------------------------------------------------------------------


def predictions(rng: random.Random, count: int, state: State) -> list[Row]:
    rows = []
    for number in range(count):
        name, seed = FAMILIES[number % len(FAMILIES)], rng.randrange(2**31)
        rows.append(state.row("prediction", number, partial(_prediction, name, seed)))
        _print_row("prediction", number, count, rows[-1])
    table(rows)
    return rows


def _prediction(name: str, seed: int) -> Row:
    ran = child("predict", name=name, seed=seed)
    row = ran.result
    added, held = row["predicted_bytes"] - row["held_bytes"], row["held_bytes"]
    return {
        "model": row["model"], "batch": row["batch_size"], "frozen": row["freeze_rate"],
        "segments": row["segments"], "optimizer": row["optimizer"], "held MB": held / 1e6,
        "before MB": row["before_bytes"] / 1e6, "predicted MB": row["predicted_bytes"] / 1e6,
        "measured MB": ran.marked_bytes / 1e6, "error": row["predicted_bytes"] / ran.marked_bytes - 1,
        "error of added": added / max(1, ran.marked_bytes - held) - 1,
    }  # fmt: skip


def predict(name: str, seed: int) -> Row:
    """Predict the memory of a random plan for a network, then run three updates; in a child process."""
    from onefold.retraining import allocator

    allocator.request_huge_pages()
    import numpy as np
    import torch

    from onefold.meter.memory import high_water_bytes, reset_high_water
    from onefold.retraining.memory_monitor import ProcessMemory
    from onefold.retraining.network_profile import profile_network
    from onefold.retraining.samples import Samples
    from onefold.retraining.stages import split_into_stages
    from onefold.retraining.training_step import Stepper
    from onefold.vocabulary.records import Config
    from onefold.vocabulary.retraining import RetrainingPlan
    from onefold.vocabulary.workload_reference import load

    allocator.map_large_blocks()
    torch.manual_seed(seed)
    rng = random.Random(seed)
    workload = load(name)
    drawn = _drawn(name, rng)
    config = Config({**workload.space.default(), **drawn})
    network = workload.build(config)

    has_pictures = any(isinstance(one, torch.nn.Conv2d) for one in network.modules())
    if has_pictures:
        network.to(memory_format=torch.channels_last)  # as in a retraining
    arrays = Noise(*((LENGTH,), VOCABULARY) if name == WORDS else ((3, 32, 32), 0)), Noise((), CLASSES[name])
    samples = Samples(arrays, np.arange(256), torch.device("cpu"), channels_last=has_pictures)

    def loss(outputs: Any, targets: Any) -> Any:
        return workload.loss(outputs, targets, config)

    few = samples.batch(slice(0, 4))
    staged = split_into_stages(network, few[:-1])
    profile = profile_network(staged, few, loss)
    stepper = Stepper(staged, profile.trace, loss)
    allocator.release_free_memory()
    held = ProcessMemory().used()
    while True:
        plan = RetrainingPlan(
            batch_size=round(2 ** rng.uniform(0, 8)),
            accumulation=2,
            freeze_rate=rng.random(),
            segments=rng.randint(1, max(1, staged.layers // 3)),
            optimizer=rng.choice(("adam", "sgd")),
        )
        expected = held + profile.added_bytes(plan)
        if expected <= MAX_PLAN_BYTES:
            break
    before = high_water_bytes()
    reset_high_water()
    stepper.use_plan(plan)
    for _ in range(3):
        batches = (samples.batch(slice(0, plan.batch_size)) for _ in range(plan.accumulation))
        stepper.update(batches, plan.effective_batch, plan.lr)
    settings = ", ".join(f"{key} {value}" for key, value in drawn.items())
    return {
        "model": f"{name} ({settings})", "batch_size": plan.batch_size, "freeze_rate": round(plan.freeze_rate, 3),
        "segments": plan.segments, "optimizer": plan.optimizer, "held_bytes": held, "before_bytes": before,
        "predicted_bytes": expected,
    }  # fmt: skip


@dataclass(frozen=True)
class Noise:
    """Random samples that are generated on access and not kept."""

    sample: tuple[int, ...]
    numbers: int  # integers below this; 0 for standard normal numbers

    def __getitem__(self, rows: Any) -> Any:
        import numpy as np

        rng, shape = np.random.default_rng(len(rows)), (len(rows), *self.sample)
        return rng.integers(self.numbers, size=shape) if self.numbers else rng.standard_normal(shape, np.float32)


def _drawn(name: str, rng: random.Random) -> Row:
    match name:
        case "cifar10":
            return {"depth": rng.choice((14, 20)), "width": rng.choice((16, 24))}
        case "cifar10-mobilenet":
            return {"width": rng.choice((0.5, 0.75, 1.0))}
        case "cifar10-vit":
            return {"width": rng.choice((64, 96, 128)), "depth": rng.randint(2, 8), "heads": rng.choice((2, 4))}
    return {
        "stride": round(2 ** rng.uniform(0, 5)), "embedding": rng.choice((16, 32, 64, 128)),
        "units": rng.choice((16, 32, 64, 128)), "bidirectional": rng.random() < 0.5,
    }  # fmt: skip


def predicted(rows: list[Row]) -> list[Claim]:
    errors = [abs(row["error"]) for row in rows]
    added = [abs(row["error of added"]) for row in rows]
    middle, worst = median(errors), max(errors)
    bad = max(rows, key=lambda row: abs(row["error"]))
    return [
        Claim(f"peak memory predicted before any step, {len(rows)} plans: median error", f"<= {MEDIAN:.0%}",
              f"{middle:.1%} ({median(added):.1%} of what the plan adds)", middle <= MEDIAN),
        Claim("… worst error", f"<= {WORST:.0%}", f"{worst:.1%} ({bad['model']}, batch {bad['batch']})",
              worst <= WORST),
    ]  # fmt: skip


# Models and data to retrain -----------------------------------------------------------------------------------------


class Place:
    """Folders of models and of new data, created once."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.names = PICTURES[:1] if quick else PICTURES
        child("prepare", folder=str(folder), names=self.names)

    def model(self, name: str) -> Path:
        return self.folder / "models" / name

    def data(self, name: str) -> Path:
        return self.folder / "data" / name

    def fresh(self) -> Path:
        """Return a new folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def prepare(folder: str, names: list[str]) -> Row:
    """Train models briefly and write the same patterns with inverted brightness; in a child process."""
    import torch
    from torch.nn import functional

    from onefold import Data
    from onefold.datasets import write_data
    from onefold.training.weights import write_weights
    from onefold.vocabulary.workload_reference import load

    place = Path(folder)
    for name in names:
        known, (images, labels) = _patterns(NOISE[name], OLD, NEW)
        write_data(place / "data" / name, Data((-images, labels)))
        workload = load(name)
        config = workload.space.complete(LARGE[name])
        torch.manual_seed(0)
        network = workload.build(config)
        inputs, targets = (torch.as_tensor(part) for part in known)
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        for _ in range(3):
            for chosen in torch.randperm(len(targets)).split(64):
                optimizer.zero_grad()
                functional.cross_entropy(network(inputs[chosen]), targets[chosen]).backward()
                optimizer.step()
        model = place / "models" / name
        model.mkdir(parents=True)
        write_weights(model, network.state_dict())
        (model / "model.json").write_text(json.dumps({"workload": name, "config": dict(config)}))
    return {}


def _patterns(noise: float, *counts: int) -> list[Any]:
    """Return noisy images of ten patterns, in parts of these sizes."""
    import numpy as np

    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(10, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    parts = []
    for count in counts:
        targets = rng.integers(10, size=count)
        images = patterns[targets] + noise * rng.normal(size=(count, 3, 32, 32))
        parts.append((images.astype(np.float32), targets))
    return parts


# A limit that is halved during retraining --------------------------------------------------------------------------


def halvings(place: Place, count: int, state: State, window_s: float) -> list[Row]:
    rows = []
    for number in range(count):
        rows.append(state.row("halved", number, partial(_halving, place, number, window_s)))
        _print_row("halved", number, count, rows[-1])
    table([{key: value for key, value in row.items() if key != "said"} for row in rows])
    return rows


def _halving(place: Place, number: int, window_s: float) -> Row:
    name = place.names[number % len(place.names)]
    model, data = place.model(name), place.data(name)
    limit = _least(model, data, place.fresh()) + ROOM[number // len(place.names) % len(ROOM)]
    quiet = _retrained(model, data, place.fresh(), limit, window_s, place.fresh())
    held = round((quiet["held MB"] or 0) * 1e6)
    lowered: Row = {}

    def halve(pid: int) -> None:
        used, data = field(pid, "VmRSS"), field(pid, "VmData")
        lowered["left"] = held + (limit - held) // 2
        lowered["most"] = most = data - used + lowered["left"]
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, hard))

    disturbed = _retrained(model, data, place.fresh(), limit, window_s, place.fresh(), at_s=window_s / 2, do=halve)
    gains = [(one["after"] or 0.0) - (one["before"] or 0.0) for one in (quiet, disturbed)]
    return {
        "model": model.name, "window s": window_s, "limit MB": limit / 1e6, "held MB": held / 1e6,
        "left MB": lowered.get("left", 0) / 1e6 or None, "status": disturbed["status"],
        "wall s": disturbed["wall s"], "peak MB": disturbed["peak MB"], "later MB": disturbed["later MB"],
        "windows": disturbed["windows"], "quiet plan": quiet["plan"],
        "plan": disturbed["plan"], "reactions": disturbed["reactions"], "before": quiet["before"],
        "gain by half": disturbed["by half"], "quiet gain": gains[0], "gain": gains[1], "said": disturbed["said"],
    }  # fmt: skip


def survived(rows: list[Row]) -> list[Claim]:
    killed = [row for row in rows if row["status"] < 0]
    broken = [row for row in rows if row["status"] > 0]
    undisturbed = [row for row in rows if row["left MB"] is None]
    lost = [row for row in rows if not (row["gain"] > 0 and row["gain"] >= KEPT * row["quiet gain"])]
    changed = [row for row in rows if "memory" in row["reactions"]]
    later = [row["later MB"] / row["left MB"] for row in rows if row["later MB"] and row["left MB"]]
    shares = [row["gain"] / row["quiet gain"] for row in rows if row["quiet gain"] > 0]
    return [
        Claim(f"the limit halved in the middle, {len(rows)} retrainings: killed", "0",
              f"{len(killed)} ({len(changed)} had to plan anew, {len(undisturbed)} were over before)", not killed),
        Claim("… ended without a model, to be started again", "0", str(len(broken)), not broken),
        Claim(f"… over what was left, {REACTS_S:g} s later", "0",
              f"{sum(share > 1 for share in later)} of {len(later)} (at most {max(later, default=0.0):.1%} of it)",
              bool(later) and max(later) <= 1),
        Claim("… gain kept", f">= {KEPT:.0%} of the undisturbed one in all",
              f"{len(rows) - len(lost)} of {len(rows)} (least {min(shares, default=0.0):.0%})", not lost),
    ]  # fmt: skip


def _command(model: Path, data: Path, home: Path, *words: str) -> list[str]:
    return ["-m", "onefold.cli", "retrain", str(model), "--data", str(data), "--home", str(home), "--json", *words]


def _least(model: Path, data: Path, home: Path) -> int:
    """Return the least memory that the command reports to need."""
    ran = watched(_command(model, data, home, "--plan-only", "--memory", "1MB"))
    least = re.search(r"Set memory to (\d+)MiB", " ".join(ran.complaint.split()))
    if ran.status != 2 or least is None:
        sys.exit(f"the least memory of {model.name} is not reported: {ran.status}, {ran.complaint}")
    return int(least[1]) * 2**20


def _retrained(model: Path, data: Path, home: Path, limit: int, window_s: float, save: Path, **midway: Any) -> Row:
    words = ["--memory", str(limit), "--window", f"{window_s:.2f}s", "--save", str(save)]
    ran = watched(_command(model, data, home, *words), limit=limit, **midway)
    row = ran.result
    return {
        "status": ran.status, "peak MB": max(ran.peak_bytes, row.get("peak_bytes") or 0) / 1e6,
        "later MB": ran.later_bytes / 1e6 or None, "wall s": ran.wall_s, "before": row.get("before"),
        "after": row.get("after"), "windows": len(row.get("windows", ())),
        "held MB": row.get("held_bytes", 0) / 1e6 or None, "plan": _plan(row.get("chosen")),
        "reactions": ", ".join(one["rule"] for one in row.get("reactions", ())),
        "by half": _by_half(row, window_s), "said": _said(ran.complaint),
    }  # fmt: skip


def _said(complaint: str) -> str:
    """Return the error message of a process on one line; of a traceback, the location and the last line."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = [*(f"{line}; " for line in lines[:-1] if "/src/onefold/" in line)][-5:] + lines[-1:]
    text = re.sub(r"/[^\s\"]*/src/(?=onefold/)", "", " ".join(lines))
    return re.sub(r"(?<![\w.])/[^\s\"]*/(?=[^\s/])", "", text)  # without the folders of this machine


def _by_half(row: Row, window_s: float) -> float | None:
    """Return the best gain in the first half of the window, by the evaluations of micro-windows."""
    scores = [one["score"] for one in row.get("windows", ()) if one["ended_s"] <= window_s / 2 and one["score"]]
    return max(scores) - row["before"] if scores else None


def _plan(row: Row | None) -> str | None:
    if row is None:
        return None
    return f"{row['batch_size']}x{row['accumulation']}/{row['freeze_rate']:.2f}/{row['segments']}"


def _print_row(part: str, number: int, count: int, row: Row) -> None:
    shown = {key: value for key, value in row.items() if value not in (None, "")}
    settings = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()]
    print(f"{part} {number + 1} of {count}: {', '.join(settings)}", flush=True)


CHILDREN: dict[str, Callable[..., Row]] = {"predict": predict, "prepare": prepare}

if __name__ == "__main__":
    main()
