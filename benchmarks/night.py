"""A night in an hour: studies, kills, full disks and 20 readers; memory and file descriptors of long-lived processes.

For 60 minutes, one process tunes study after study with the Python API: with two workers, inline, and with the winner
measured on this machine; each is extended once. One process serves a queue that gets a study every 30 s. 20 processes
list, show and report these studies. At most every 40 s, and once per study, a worker, a measuring process or the
process of a queued study is killed with SIGKILL. At most every 60 s, and once per study, the disk is full for 5 s: a
tmpfs of 96 MB that is filled up, or, without the right to mount one, a limit on the size of the files that the process
may write. A study that stops on a full disk is resumed. After 20 studies the next home is used, so that what readers
read stays the same.

Resident memory and open file descriptors are sampled from outside, twice per second. The first fifth is warm-up;
growth is the last fifth against the second: medians of the memory, minima of the descriptors. A study that runs has
descriptors of its own, so their median tells how much of the time one ran, which depends on the load of the machine;
what is never closed raises the minimum too. The slope of the memory (Theil-Sen, over the samples after warm-up) and the
median of the descriptors are in the figures.
"""

from __future__ import annotations

import itertools
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from claims import Claim, arguments, conclude, table

MINUTES, QUICK_MINUTES = 60.0, 4.0
READERS = 20
SAMPLE_EVERY_S, KILL_EVERY_S, FILL_EVERY_S, FULL_FOR_S = 0.5, 40.0, 60.0, 5.0
PAUSE_S, SUBMIT_EVERY_S, END_TIMEOUT_S = 5.0, 30.0, 600.0
DISK_BYTES = 96_000_000
STUDIES_PER_HOME = 20
MAX_GROWTH = 0.05
KILLED = ("onefold.engine.worker", "onefold.device.runner", "onefold.study run")  # in command lines
WORKLOAD = "onefold.testing.toy:Spirals"
FILLER = "filler"


# The processes under test: `python night.py ROLE FOLDER …`, each until FOLDER/stop exists.


def tune_all_night(folder: Path) -> None:
    """Run one study after the other; each line of FOLDER/studies is one that has ended."""
    from onefold import Budget, ParallelismOptions, ServingOptions, Study
    from onefold.vocabulary.errors import OnefoldError

    two_workers, inline = ParallelismOptions(parallel=2, threads=1), ParallelismOptions(engine="inline")
    kinds: list[dict[str, Any]] = [
        {"parallelism": two_workers},
        {"parallelism": inline},
        {"parallelism": inline, "device": "host", "serving": ServingOptions(measure="winner")},
        {"parallelism": inline, "search": "gp"},
    ]
    number = 0
    while not (folder / "stop").exists():
        home = folder / "disk" / f"home-{number // STUDIES_PER_HOME:04d}"
        study: Study | None = None
        extended = False
        while True:
            try:
                if study is None:
                    budget = Budget(trials=6, max_epochs=4)
                    options = kinds[number % len(kinds)]
                    study = Study(WORKLOAD, budget=budget, seed=number, name=f"s{number}", home=home, **options)
                study.run()
                if extended:
                    break
                study.extend(trials=3)
                extended = True
            except (OnefoldError, OSError) as error:  # the disk is full
                _append(folder / "stops", f"{number} {type(error).__name__}: {error}")
                time.sleep(1.0)
        _append(folder / "studies", str(number))
        number += 1
        time.sleep(PAUSE_S)
        if number % STUDIES_PER_HOME == 0:
            for old in sorted((folder / "disk").glob("home-*"))[:-1]:
                shutil.rmtree(old, ignore_errors=True)


def serve_all_night(folder: Path) -> None:
    """Serve a queue; whoever submits keeps it from running empty."""
    from onefold.study import Home
    from onefold.study.queue import Queue

    while not (folder / "stop").exists():
        Queue(Home(folder / "queue")).run(lambda line: _append(folder / "served", line))
        time.sleep(1.0)


def read_all_night(folder: Path, seed: str) -> None:
    """List, show and report the newest study of both homes; each line of FOLDER/failed-reads is a failure."""
    from onefold.cli.app import app

    rng = random.Random(seed)
    while not (folder / "stop").exists():
        for home in (*sorted((folder / "disk").glob("home-*"))[-1:], folder / "queue"):
            names = sorted((home / "studies").glob("s*"), key=lambda path: int(path.name[1:]))[-2:-1]
            for words in (
                ["list"],
                *(["show", path.name] for path in names),
                *(["report", path.name, "--text"] for path in names),
            ):
                code: Any = 0
                try:
                    code = app([*words, "--home", str(home)], standalone_mode=False)
                except SystemExit as end:
                    code = end.code
                if code:
                    _append(folder / "failed-reads", f"{words}: exit code {code}")
                _append(folder / "reads", words[0])
        time.sleep(rng.uniform(10.0, 40.0))


def _append(file: Path, line: str) -> None:
    with file.open("a") as lines:
        lines.write(f"{line}\n")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


# The driver.


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system on a folder; yield whether that was possible."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    is_mounted = shutil.which("mount") is not None and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(disk: Path, tuner: psutil.Process, is_mounted: bool) -> None:
    """Leave no space on the disk, or let the process write none."""
    if not is_mounted:
        tuner.rlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    with (disk / FILLER).open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def empty(disk: Path, tuner: psutil.Process, is_mounted: bool) -> None:
    """Make space again."""
    if is_mounted:
        (disk / FILLER).unlink(missing_ok=True)
    else:
        tuner.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def kill_one(root: psutil.Process, rng: random.Random) -> bool:
    """Kill a process that this one has started; return whether there was one."""
    candidates = []
    for process in root.children(recursive=True):
        with suppress(psutil.Error):
            if any(name in " ".join(process.cmdline()) for name in KILLED):
                candidates.append(process)
    if candidates:
        with suppress(psutil.Error):
            rng.choice(candidates).send_signal(signal.SIGKILL)
            return True
    return False


def submit_studies(folder: Path) -> None:
    """Submit a study to the queue every 30 s, unless two wait, until FOLDER/stop exists."""
    from onefold import Budget, ParallelismOptions, Study
    from onefold.study import Home
    from onefold.study.queue import Queue

    home = folder / "queue"
    queue = Queue(Home(home))
    options, budget = ParallelismOptions(parallel=1, threads=1), Budget(trials=4, max_epochs=4)
    for number in itertools.count():
        queue.submit(Study(WORKLOAD, budget=budget, parallelism=options, name=f"s{number}", home=home, knobs="off"))
        submitted = time.monotonic()
        while time.monotonic() - submitted < SUBMIT_EVERY_S or len(queue.waiting()) > 1:
            if (folder / "stop").exists():
                return
            time.sleep(1.0)


ROLES = {"tune": tune_all_night, "serve": serve_all_night, "read": read_all_night, "submit": submit_studies}


def start(stack: ExitStack, folder: Path, role: str, *more: str) -> psutil.Process:
    """Start a process of the night; it is killed at the end at the latest."""
    with (folder / f"{role}.log").open("ab") as log:
        output = subprocess.DEVNULL if role == "read" else log
        command = [sys.executable, __file__, role, str(folder), *more]
        process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log)
    stack.callback(end, process)
    return process


def end(process: psutil.Process) -> None:
    """Kill a process that has not ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def sample(processes: dict[str, psutil.Process], samples: dict[str, list[tuple[float, int, int]]]) -> None:
    """Append time, resident bytes and descriptors of each process. Raises psutil.Error if one has ended."""
    for name, process in processes.items():
        with process.oneshot():
            samples[name].append((time.monotonic(), process.memory_info().rss, process.num_fds()))


def growth(samples: Sequence[tuple[float, int, int]]) -> dict[str, float]:
    """Return the growth of one process, the last fifth of its samples against the second, and slopes."""
    fifth = len(samples) // 5
    early, late, warm = samples[fifth : 2 * fifth], samples[-fifth:], samples[fifth:]
    rss = [statistics.median(each[1] for each in part) for part in (early, late)]
    descriptors = [min(each[2] for each in part) for part in (early, late)]
    return {
        "rss_mb": rss[0] / 1e6,
        "rss_growth": rss[1] / rss[0] - 1,
        "rss_slope_per_hour": _slope([(each[0], each[1]) for each in warm]) * 3600 / rss[0],
        "descriptors": descriptors[0],
        "descriptor_growth": descriptors[1] - descriptors[0],
        "median_descriptors": [statistics.median(each[2] for each in part) for part in (early, late)],
    }


def _slope(points: Sequence[tuple[float, float]], most: int = 300) -> float:
    """Return the Theil-Sen estimate: the median of the slopes between all pairs of (at most 300) points."""
    chosen = points[:: max(1, len(points) // most)]
    return statistics.median(
        (b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(chosen) for b in chosen[i + 1 :] if b[0] > a[0]
    )


def run_night(folder: Path, minutes: float) -> tuple[dict[str, list[tuple[float, int, int]]], dict[str, int]]:
    """Run everything for some minutes; return the samples and how often what happened."""
    rng = random.Random(2026)
    counts = {"kills": 0, "full disks": 0, "processes left": 0, "deaths": 0}
    with ExitStack() as stack:
        disk = folder / "disk"
        is_mounted = stack.enter_context(small_disk(disk))
        start(stack, folder, "submit")
        watched = {"tuner": start(stack, folder, "tune"), "queue server": start(stack, folder, "serve")}
        watched |= {f"reader {number}": start(stack, folder, "read", str(number)) for number in range(READERS)}
        samples: dict[str, list[tuple[float, int, int]]] = {name: [] for name in watched}
        time.sleep(20.0 if minutes > 5 else 10.0)  # imports
        began = time.monotonic()
        next_kill = dict.fromkeys(("tuner", "queue server"), began + KILL_EVERY_S)
        at_kill = dict.fromkeys(next_kill, 0)
        next_fill, at_fill, full_until = began + FILL_EVERY_S, 0, 0.0
        while (now := time.monotonic()) - began < 60 * minutes:
            try:
                sample(watched, samples)
            except psutil.Error:
                counts["deaths"] += 1
                break
            for name, file in (("tuner", "studies"), ("queue server", "served")):
                ended = len(_lines(folder / file))
                if now >= next_kill[name] and ended > at_kill[name] and kill_one(watched[name], rng):
                    counts["kills"] += 1
                    next_kill[name], at_kill[name] = now + KILL_EVERY_S, ended
            ended = len(_lines(folder / "studies"))
            if now >= next_fill and ended > at_fill:
                fill(disk, watched["tuner"], is_mounted)
                counts["full disks"] += 1
                next_fill, at_fill, full_until = now + FILL_EVERY_S, ended, now + FULL_FOR_S
            elif full_until and now >= full_until:
                empty(disk, watched["tuner"], is_mounted)
                full_until = 0.0
            time.sleep(max(0.0, now + SAMPLE_EVERY_S - time.monotonic()))
        empty(disk, watched["tuner"], is_mounted)
        (folder / "stop").touch()
        _, alive = psutil.wait_procs(list(watched.values()), timeout=END_TIMEOUT_S)
        counts["processes left"] = len(alive)
    return samples, counts


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
        return
    options = arguments(__doc__)
    minutes = QUICK_MINUTES if options.quick else MINUTES
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        samples, counts = run_night(folder, minutes)
        counts |= {name: len(_lines(folder / name)) for name in ("studies", "served", "reads", "stops", "failed-reads")}
        stops, failed_reads = _lines(folder / "stops"), _lines(folder / "failed-reads")
        for line in (*stops[-5:], *failed_reads[-5:]):
            print(line)
    ran_s = samples["tuner"][-1][0] - samples["tuner"][0][0]
    rows = [{"process": name, **growth(each)} for name, each in samples.items()]
    table(rows)
    by_name = {row["process"]: row for row in rows}
    readers = [row for row in rows if row["process"].startswith("reader")]
    ended = counts["deaths"] + counts["processes left"]
    watched = [("tuner", by_name["tuner"]), ("queue server", by_name["queue server"])]
    rss_rows = [*watched, (f"worst of {READERS} readers", max(readers, key=lambda row: row["rss_growth"]))]
    fd_rows = [*watched, (f"worst of {READERS} readers", max(readers, key=lambda row: row["descriptor_growth"]))]
    claims = [
        Claim(
            "minutes of studies, kills, full disks and readers",
            f">= {minutes:g}",
            f"{ran_s / 60:.1f}",
            ran_s >= 59 * minutes,
        ),
        Claim("processes under test that ended early, or not at all", "0", str(ended), ended == 0),
        *(_memory_claim(name, row) for name, row in rss_rows),
        *(_descriptor_claim(name, row) for name, row in fd_rows),
        Claim("reads that failed", "0", f"{counts['failed-reads']} of {counts['reads']}", counts["failed-reads"] == 0),
    ]
    conclude("night", claims, {"counts": counts, "processes": rows}, quick=options.quick)


def _memory_claim(name: str, row: dict[str, Any]) -> Claim:
    measured = f"{row['rss_growth']:+.1%} of {row['rss_mb']:.0f} MB"
    bar = f"<= {MAX_GROWTH:.0%}"
    return Claim(f"growth of resident memory: {name}", bar, measured, row["rss_growth"] <= MAX_GROWTH)


def _descriptor_claim(name: str, row: dict[str, Any]) -> Claim:
    value = row["descriptor_growth"]
    return Claim(f"growth of open file descriptors: {name}", "<= 0", f"{value:+g}", value <= 0)


if __name__ == "__main__":
    main()
