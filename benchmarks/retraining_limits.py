"""Does a retraining respect its limits? Predicted and real memory, memory limits, windows and the cost of planning.

Everything is measured from outside, by a program that imports neither torch nor numpy, since a child process inherits
the high-water mark of its parent. Each retraining is a separate process that runs the real command.

Predictions: networks of four architectures with random weights, and random plans with batch sizes from 1 to 256. The
network is profiled as in a retraining, and memory is predicted before any step of any plan, without lessons or
corrections. Three updates of two batches each follow. Their peak is the high-water mark of the process at its end; the
mark is reset just before the first update, so that earlier peaks, of importing torch and of profiling, cannot hide that
of the plan. The error is also shown for the memory that the plan adds, without the constant part of Python and torch,
which makes any prediction look accurate.

Limits: models trained on clean data are retrained on three kinds of new data, one of them without a shift, where it is
easy to become worse. First the command is asked for the least memory that it needs; the limit is drawn above that,
often by a few megabytes only. Half of the cases have the lessons of earlier ones. A retraining resets the high-water
mark itself, so the final mark is not its peak: the mark is also polled from outside every few milliseconds, along with
the sum over the process and its children, and the highest value counts. The window is compared with the whole life of
the process, including start-up and exit of Python. A refusal must be true: the given memory is less than it needs, or
the window is too short. If a control group is delegated in $ONEFOLD_CGROUP, the kernel enforces the limit too, by
killing. With `--state FILE` an interrupted run continues where it was.

Halved: the same retraining twice, interleaved, once undisturbed. In the other run the data limit of the process is
lowered from outside after half of the window, so that half of the memory above that of the process itself is left.
Memory is compared with the new limit from one second later on, since that limit counts address space. The data is
synthetic, patterns in noise with inverted brightness: gains are so large that a tenth of them is no noise.

All processes run on one core, unless $OMP_NUM_THREADS is set, one at a time; the machine should be otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from claims import RESULTS, Claim, conclude, median, table

MEDIAN, WORST = 0.05, 0.10
INSIDE = 0.99
PLANNING = 0.05
KEPT = 0.90
MAX_PLAN_BYTES = 3_000_000_000  # maximum predicted memory of a random plan
LOOKED_EVERY_S = 0.003
REACTS_S = 1.0  # after which a lowered limit must be respected again
MINUTE_S, HALVED_S = 60.0, 40.0
RESCORED = 10
ROOM = (50_000_000, 100_000_000)  # bytes above the least memory
GROUP = "ONEFOLD_CGROUP"
PARTS = ("predictions", "cases", "long", "halved")
PICTURES = ("cifar10", "cifar10-mobilenet", "cifar10-vit")
WORDS = "newsgroups-lstm"
FAMILIES = (*PICTURES, WORDS)
SHIFTS = dict.fromkeys(PICTURES, ("natural", "gaussian_noise", "fog")) | {WORDS: ("natural", "renamed")}
SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "cifar10": ({"depth": 8, "width": 8}, {"depth": 14, "width": 16}),
    "cifar10-mobilenet": ({"width": 0.5}, {"width": 0.75}),
    "cifar10-vit": ({"width": 64, "depth": 2, "heads": 2}, {"width": 96, "depth": 3}),
    WORDS: ({"embedding": 32, "units": 32}, {"stride": 2, "units": 64, "bidirectional": True}),
}
LARGE: dict[str, dict[str, Any]] = {
    "cifar10": {"depth": 14, "width": 24},
    "cifar10-mobilenet": {"width": 1.0},
    "cifar10-vit": {"width": 96, "depth": 3},
}
NOISE = {"cifar10": 8.0, "cifar10-mobilenet": 4.5, "cifar10-vit": 1.8}  # each still improves after half of the window
LENGTH, VOCABULARY, CLASSES = 200, 20_000, dict.fromkeys(PICTURES, 10) | {WORDS: 20}
OLD = 2000  # samples of the original training
NEW, MUCH_NEW = 640, 2400  # new samples, of which a retraining holds out a fifth
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
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), quick)
        print(f"data: {place.source}; the kernel's limit: {kernel_limit()}", flush=True)
        if "cases" in asked:
            figures["cases"] = retrainings(place, random.Random(2), 8 if quick else 100, state)
        if "long" in asked:
            figures["long"] = retrainings(
                place, random.Random(3), 1 if quick else 6, state, 20.0 if quick else MINUTE_S
            )
        if "halved" in asked:
            figures["halved"] = halvings(place, 1 if quick else 6, state, 16.0 if quick else HALVED_S)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    figures |= {
        "measured": {**figures.get("measured", {}), **dict.fromkeys(asked, now)}, "data": place.source,
        "kernel limit": kernel_limit(), "watcher_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
    claims = [
        *predicted(figures["predictions"]), *kept(figures["cases"]), *planned(figures["long"]),
        *survived(figures["halved"]),
    ]  # fmt: skip
    conclude("retraining_limits", claims, figures, quick=quick)
    state.remove()


def _earlier(quick: bool) -> Row:
    """Return the results of the last run."""
    content = json.loads((RESULTS / f"retraining_limits{'-quick' * quick}.json").read_text())
    return {"measured": dict.fromkeys(PARTS, content["when"]), **content["figures"]}


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


# Watching a process from outside ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """The outcome of a process."""

    status: int  # below zero: the signal that ended it
    wall_s: float
    peak_bytes: int  # of its resident memory, as polled from outside
    marked_bytes: int  # the same since its last reset of the high-water mark
    later_bytes: int  # the peak from REACTS_S after the intervention on
    output: str
    complaint: str

    @property
    def row(self) -> Row:
        """Return its output, parsed."""
        return dict(json.loads(self.output.splitlines()[-1])) if self.status == 0 else {}


def watched(
    words: Sequence[str],
    order: Any = None,
    *,
    at_s: float = float("inf"),
    do: Callable[[int], object] = lambda _: None,
    limit: int | None = None,
) -> Ran:
    """Run a Python program to its end and poll its memory; call `do` with its pid after `at_s`."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        json.dump(order, given)
        given.seek(0)
        group = _group(limit)
        join = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        began, peak, later, done_at = time.monotonic(), 0, 0, float("inf")
        process = subprocess.Popen(
            [sys.executable, *words], stdin=given, stdout=output, stderr=errors, preexec_fn=join,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )  # fmt: skip
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                peak = max(peak, _field(process.pid, "VmHWM"), _tree_bytes(process.pid))
                if time.monotonic() - done_at >= REACTS_S:
                    later = max(later, _field(process.pid, "VmRSS"))
                if time.monotonic() - began >= at_s:
                    do(process.pid)
                    at_s, done_at = float("inf"), time.monotonic()
                time.sleep(LOOKED_EVERY_S)
        except BaseException:  # leave no process behind
            process.kill()
            process.wait()
            raise
        finally:
            if group is not None:
                group.rmdir()
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        complaint = errors.read().strip()
        marked = usage.ru_maxrss * 1024
        return Ran(process.returncode, wall_s, max(peak, marked), marked, later, output.read(), complaint)


def child(called: str, **order: Any) -> Ran:
    """Run a function of this program in a child process, which may import torch."""
    ran = watched([__file__, "--child", called], order)
    if ran.status != 0:
        sys.exit(f"{called} {order} ended with {ran.status}: {ran.complaint}")
    return ran


def _tree_bytes(pid: int) -> int:
    """Return the memory of a process and its children; pages that they share count once. 0 without children."""
    tree = [pid, *_children(pid)]
    return sum(_proportional_bytes(one) for one in tree) if len(tree) > 1 else 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_children(child)]
    return found


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _field(pid: int, name: str) -> int:
    """Return a field of /proc/PID/status in bytes; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def kernel_limit() -> str:
    return "a control group" if os.environ.get(GROUP) else f"none: no control group is delegated in ${GROUP}"


def _group(limit: int | None) -> Path | None:
    """Create a control group with this limit inside the delegated one."""
    given = os.environ.get(GROUP)
    if limit is None or not given:
        return None
    group = Path(given) / f"retraining-limits-{os.getpid()}"
    group.mkdir(exist_ok=True)
    second = (Path(given) / "cgroup.subtree_control").exists()
    (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
    if second:
        with suppress(OSError):  # a kernel without swap accounting
            (group / "memory.swap.max").write_text("0")
    return group


# Predicted memory ---------------------------------------------------------------------------------------------------


def predictions(rng: random.Random, count: int) -> list[Row]:
    rows = []
    for number in range(count):
        ran = child("predict", name=FAMILIES[number % len(FAMILIES)], seed=rng.randrange(2**31))
        row = ran.result
        added, held = row["predicted_bytes"] - row["held_bytes"], row["held_bytes"]
        rows.append({
            "model": row["model"], "batch": row["batch_size"], "frozen": row["freeze_rate"],
            "segments": row["segments"], "optimizer": row["optimizer"], "held MB": held / 1e6,
            "before MB": row["before_bytes"] / 1e6, "predicted MB": row["predicted_bytes"] / 1e6,
            "measured MB": ran.marked_bytes / 1e6, "error": row["predicted_bytes"] / ran.marked_bytes - 1,
            "error of added": added / max(1, ran.marked_bytes - held) - 1,
        })  # fmt: skip
        _print_row("prediction", number, count, rows[-1])
    table(rows)
    return rows


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
        self.folder, self.quick = folder, quick
        small = {name: list(SMALL[name][: 1 if quick else None]) for name in FAMILIES}
        large = {name: LARGE[name] for name in (PICTURES[:1] if quick else PICTURES)}
        self.source: str = child("prepare", folder=str(folder), small=small, large=large).result["source"]
        self.models = {name: [folder / "models" / f"{name}-{at}" for at in range(len(small[name]))] for name in small}
        self.large = {name: folder / "models" / f"{name}-large" for name in large}

    def data(self, name: str, shift: str) -> Path:
        return self.folder / "data" / _kind(name) / shift

    def fresh(self) -> Path:
        """Return a new folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))


def _negatives(name: str) -> str:
    """Return the name of the patterns with inverted brightness, most of which are misclassified at first."""
    return f"negatives-{name}"


def _kind(name: str) -> str:
    return "words" if name == WORDS else "pictures"


def prepare(folder: str, small: dict[str, list[Row]], large: dict[str, Row]) -> Row:
    """Train models briefly on clean data and write shifted new data; in a child process."""
    import torch
    from torch.nn import functional

    from onefold import Data
    from onefold.baselines.shifted_datasets import corrupted_data
    from onefold.datasets import write_data
    from onefold.training.weights import write_weights
    from onefold.vocabulary.workload_reference import load

    place = Path(folder)
    old_pictures, new_pictures, source = _pictures()
    old_words, new_words, renamed = _words()
    for shift in SHIFTS[PICTURES[0]]:
        write_data(place / "data" / "pictures" / shift, corrupted_data(Data(new_pictures), shift, 4))
    patterns = {}
    for name in large:
        patterns[name], (images, labels) = _patterns(NOISE[name], OLD, MUCH_NEW)
        write_data(place / "data" / "pictures" / _negatives(name), Data((-images, labels)))
    for shift, part in (("natural", new_words), ("renamed", renamed)):
        write_data(place / "data" / "words" / shift, Data(part))
    old = {name: old_words if name == WORDS else old_pictures for name in FAMILIES}
    wanted = [(name, f"{name}-{at}", given, old[name]) for name in small for at, given in enumerate(small[name])]
    wanted += [(name, f"{name}-large", given, patterns[name]) for name, given in large.items()]
    for name, called, given, known in wanted:
        workload = load(name)
        config = workload.space.complete(given)
        torch.manual_seed(0)
        network = workload.build(config)
        inputs, targets = (torch.as_tensor(part) for part in known)
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        for _ in range(3):
            for chosen in torch.randperm(len(targets)).split(64):
                optimizer.zero_grad()
                functional.cross_entropy(network(inputs[chosen]), targets[chosen]).backward()
                optimizer.step()
        model = place / "models" / called
        model.mkdir(parents=True)
        write_weights(model, network.state_dict())
        (model / "model.json").write_text(json.dumps({"workload": name, "config": dict(config)}))
    return {"source": source}


def _pictures() -> tuple[Any, Any, str]:
    """Return clean images to train on and others to shift: CIFAR-10 if available, otherwise synthetic patterns."""
    from onefold.datasets import cifar10
    from onefold.vocabulary.errors import DatasetError

    try:
        data = cifar10()
    except DatasetError:
        return *_patterns(2.0, OLD, NEW), "made-up pictures, corrupted, and made-up texts"
    old, new = tuple(part[:OLD] for part in data.train), tuple(part[:NEW] for part in data.validation)
    return old, new, "CIFAR-10, corrupted, and made-up texts"


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


def _words() -> tuple[Any, Any, Any]:
    """Return texts in which each class has its own words, new ones, and new ones with words reassigned to classes."""
    import numpy as np

    rng = np.random.default_rng(1)
    classes, own = CLASSES[WORDS], 20
    targets = rng.integers(classes, size=OLD + NEW)
    texts = rng.integers(2, VOCABULARY, size=(len(targets), LENGTH))
    is_class_word = rng.random(texts.shape) < 0.3
    which = rng.integers(own, size=texts.shape)

    def written(owners: Any) -> Any:
        return np.where(is_class_word, 2 + owners[:, None] * own + which, texts)

    renamed = np.where(which < own // 2, written((targets + 1) % classes), written(targets))
    same = written(targets)
    return (same[:OLD], targets[:OLD]), (same[OLD:], targets[OLD:]), (renamed[OLD:], targets[OLD:])


# Limits and windows -------------------------------------------------------------------------------------------------


def retrainings(place: Place, rng: random.Random, count: int, state: State, window_s: float | None = None) -> list[Row]:
    """Run the command with random limits above the least memory, and the given or random windows."""
    shared = place.fresh()
    rows: list[Row] = []
    for number in range(count):
        name = FAMILIES[number % len(FAMILIES)]
        model = rng.choice(place.models[name])
        data = place.data(name, rng.choice(SHIFTS[name]))
        home = shared if number // len(FAMILIES) % 2 else place.fresh()
        above = 10 ** rng.uniform(6.6, 8.8)  # 4 to 630 MB
        seconds = rng.uniform(3.0, 10.0 if place.quick else 20.0) if window_s is None else window_s
        optimizer = rng.choice(("adam", "adam", "sgd"))

        def measure(
            model: Path = model, data: Path = data, home: Path = home, above: float = above, seconds: float = seconds,
            optimizer: str = optimizer,
        ) -> Row:  # fmt: skip
            least = _least(model, data, home, optimizer)
            row = {
                "model": model.name, "data": data.name, "home": "used" if home == shared else "fresh",
                "optimizer": optimizer, "least MB": least / 1e6, "limit MB": (least + above) / 1e6,
            }  # fmt: skip
            return row | _retrained(model, data, home, optimizer, round(least + above), seconds, place.fresh())

        rows.append(state.row("cases" if window_s is None else "long", number, measure))
        _print_row("retraining", number, count, rows[-1])
    _rescore(rows)
    rows = [{key: value for key, value in row.items() if key != "folders"} for row in rows]
    table([{key: value for key, value in row.items() if key != "said"} for row in rows])
    return rows


def _command(model: Path, data: Path, home: Path, *words: str) -> list[str]:
    return ["-m", "onefold.cli", "retrain", str(model), "--data", str(data), "--home", str(home), "--json", *words]


def _least(model: Path, data: Path, home: Path, optimizer: str) -> int:
    """Return the least memory that the command reports to need."""
    words = ["--plan-only", "--memory", "1MB", "--optimizer", optimizer]
    ran = watched(_command(model, data, home, *words))
    least = re.search(r"Set memory to (\d+)MiB", " ".join(ran.complaint.split()))
    if ran.status != 2 or least is None:
        sys.exit(f"the least memory of {model.name} is not reported: {ran.status}, {ran.complaint}")
    return int(least[1]) * 2**20


def _retrained(
    model: Path, data: Path, home: Path, optimizer: str, limit: int, window_s: float, save: Path, **midway: Any
) -> Row:
    words = ["--memory", str(limit), "--window", f"{window_s:.2f}s", "--optimizer", optimizer, "--save", str(save)]
    ran = watched(_command(model, data, home, *words), limit=limit, **midway)
    row = ran.result
    peak = max(ran.peak_bytes, row.get("peak_bytes") or 0)
    return {
        "window s": window_s, "status": ran.status, "peak MB": peak / 1e6, "share": peak / limit,
        "later MB": ran.later_bytes / 1e6 or None,
        "wall s": ran.wall_s, "elapsed s": row.get("elapsed_s"), "before": row.get("before"),
        "after": row.get("after"), "windows": len(row.get("windows", ())),
        "held MB": row.get("held_bytes", 0) / 1e6 or None, "planning s": row.get("planning_s"),
        "planning MB": row["planning_bytes"] / 1e6 if row else None, "plan": _plan(row.get("chosen")),
        "reactions": ", ".join(one["rule"] for one in row.get("reactions", ())),
        "fullest": _fullest(row), "by half": _by_half(row, window_s), "said": _said(ran.complaint),
        "folders": [str(model), str(save), str(data)],
    }  # fmt: skip


def _said(complaint: str) -> str:
    """Return the error message of a process on one line; of a traceback, the location and the last line."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = [*(f"{line}; " for line in lines[:-1] if "/src/onefold/" in line)][-5:] + lines[-1:]
    text = re.sub(r"/[^\s\"]*/src/(?=onefold/)", "", " ".join(lines))
    return re.sub(r"(?<![\w.])/[^\s\"]*/(?=[^\s/])", "", text)  # without the folders of this machine


def _fullest(row: Row) -> str | None:
    """Describe the micro-window with the highest peak, with its prediction."""
    known = [one for one in row.get("windows", ()) if one["measured_bytes"]]
    if not known:
        return None
    most = max(known, key=lambda one: one["measured_bytes"])
    predicted, measured = (round(most[key] / 1e6) for key in ("predicted_bytes", "measured_bytes"))
    return f"{_plan(most['plan'])} predicted {predicted} took {measured}"


def _by_half(row: Row, window_s: float) -> float | None:
    """Return the best gain in the first half of the window, by the evaluations of micro-windows."""
    scores = [one["score"] for one in row.get("windows", ()) if one["ended_s"] <= window_s / 2 and one["score"]]
    return max(scores) - row["before"] if scores else None


def _plan(row: Row | None) -> str | None:
    if row is None:
        return None
    return f"{row['batch_size']}x{row['accumulation']}/{row['freeze_rate']:.2f}/{row['segments']}"


def _rescore(rows: list[Row]) -> None:
    """Score given and saved weights again, of some runs that changed their model."""
    changed = [row for row in rows if row["status"] == 0 and row["after"] != row["before"]]
    for row in [row for row in changed if Path(row["folders"][1]).is_dir()][:RESCORED]:  # of this run
        given, saved, data = row["folders"]
        row = child("score", given=given, saved=saved, data=data).result
        row |= {"scored before": row["given"], "scored after": row["saved"]}


def score(given: str, saved: str, data: str) -> Row:
    """Return the accuracy of two models on the validation data; in a child process."""
    import torch

    from onefold.datasets import read_data
    from onefold.model_folder import open_folder
    from onefold.retraining.samples import split_new_data
    from onefold.training.trained_model import load_network

    back = split_new_data(read_data(data), torch.device("cpu")).validation
    row = {}
    for key, folder in (("given", given), ("saved", saved)):
        network, workload, config = load_network(open_folder(folder, trust=True))
        with torch.no_grad():
            row[key] = float(workload.evaluate(network, back.batches(64), config)["accuracy"])
    return row


def kept(rows: list[Row]) -> list[Claim]:
    refused = [row for row in rows if row["status"] == 2]
    ran = [row for row in rows if row["status"] != 2]
    over = [row for row in ran if row["share"] > 1]
    killed = [row for row in ran if row["status"] != 0]
    done = [row for row in ran if row["status"] == 0]
    inside = [row for row in done if row["wall s"] <= row["window s"]]
    own = [row for row in done if row["elapsed s"] <= row["window s"]]
    scored = [row for row in done if "scored after" in row]
    worse = [row for row in done if row["after"] < row["before"]]
    worse += [row for row in scored if row["scored after"] < row["scored before"]]
    untrue = [row for row in refused if not _is_true(row)]
    most = max((row["share"] for row in ran), default=0.0)
    late = max((row["wall s"] - row["window s"] for row in done), default=0.0)
    share = len(inside) / max(1, len(done))
    return [
        Claim(f"over the memory limit, {len(ran)} retrainings", "0", f"{len(over)} (at most {most:.1%} of it)",
              not over),
        Claim("… killed or broken off", "0", str(len(killed)), not killed),
        Claim("… inside the window, whole process", f">= {INSIDE:.0%}", f"{share:.1%} (latest {late:+.2f} s; "
              f"by the command's own clock {len(own)} of {len(done)})", share >= INSIDE),
        Claim("… worse than given", "0", f"{len(worse)} ({len(scored)} scored anew)", not worse),
        Claim("refused without need", "0", f"{len(untrue)} of {len(refused)} refusals", not untrue),
    ]  # fmt: skip


def _is_true(row: Row) -> bool:
    """Return whether a refusal reports to need more memory or time than was given."""
    if "set window" in row["said"]:
        suggested = re.search(r"set window to (\d+)s", row["said"])
        return suggested is not None and int(suggested[1]) > row["window s"]
    return bool(row["limit MB"] < row["least MB"])


def planned(rows: list[Row]) -> list[Claim]:
    done = [row for row in rows if row["status"] == 0]
    times = [row["planning s"] / row["window s"] for row in done]
    sizes = [row["planning MB"] / row["limit MB"] for row in done]
    window = rows[0]["window s"]
    return [
        Claim(f"planning, of a window of {window:g} s, {len(done)} retrainings", f"<= {PLANNING:.0%}",
              f"median {median(times):.1%}, worst {max(times):.1%}", max(times) <= PLANNING),
        Claim("planning, of the memory", f"<= {PLANNING:.0%}", f"median {median(sizes):.1%}, worst {max(sizes):.1%}",
              max(sizes) <= PLANNING),
    ] if done else [Claim("planning", f"<= {PLANNING:.0%}", "no retraining came to its end", False)]  # fmt: skip


# A limit that is halved during retraining --------------------------------------------------------------------------


def halvings(place: Place, count: int, state: State, window_s: float) -> list[Row]:
    rows = []
    for number in range(count):
        rows.append(state.row("halved", number, partial(_halving, place, number, window_s)))
        _print_row("halved", number, count, rows[-1])
    table([{key: value for key, value in row.items() if key != "said"} for row in rows])
    return rows


def _halving(place: Place, number: int, window_s: float) -> Row:
    name = list(place.large)[number % len(place.large)]
    model, data = place.large[name], place.data(name, _negatives(name))
    limit = _least(model, data, place.fresh(), "adam") + ROOM[number // len(place.large) % len(ROOM)]
    quiet = _retrained(model, data, place.fresh(), "adam", limit, window_s, place.fresh())
    held = round((quiet["held MB"] or 0) * 1e6)
    lowered: Row = {}

    def halve(pid: int) -> None:
        used, data = _field(pid, "VmRSS"), _field(pid, "VmData")
        lowered["left"] = held + (limit - held) // 2
        lowered["most"] = most = data - used + lowered["left"]
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, hard))

    disturbed = _retrained(
        model, data, place.fresh(), "adam", limit, window_s, place.fresh(), at_s=window_s / 2, do=halve
    )
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


def _print_row(part: str, number: int, count: int, row: Row) -> None:
    shown = {key: value for key, value in row.items() if key != "folders" and value not in (None, "")}
    settings = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()]
    print(f"{part} {number + 1} of {count}: {', '.join(settings)}", flush=True)


CHILDREN: dict[str, Callable[..., Row]] = {"predict": predict, "prepare": prepare, "score": score}

if __name__ == "__main__":
    main()
