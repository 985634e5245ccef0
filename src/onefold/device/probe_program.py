"""Finds out what a machine can do and writes it as JSON: a program of one file, for any board that runs ONNX Runtime.

    python probe.py > board.json            needs Python 3.8, numpy and onnxruntime 1.14, or later ones, on Linux

It measures compute, memory bandwidth, what starting an operator takes, single operators, how threads add up, and power
where the board has a sensor that can be read. Then bring the file to Onefold: `onefold devices add board.json`.
Onefold itself uses these functions for the machine that it runs on.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

MODELS: dict[str, dict[str, Any]] = {}

ARRAY_BYTES = 64_000_000  # more than caches hold
GROUPS = Path("/sys/fs/cgroup")
SYSTEM = Path("/sys")


# What the machine is ------------------------------------------------------------------------------------------------


def core_count(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The cores that this process may use, and no more than its group may use at a time, rounded down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [float(allowed)]
    for folder in group_folders("cpu", groups, own):
        limit = _words(folder / "cpu.max")  # version 2: "200000 100000" or "max 100000"
        if not limit:
            limit = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(limit) == 2 and limit[0].isdigit() and int(limit[1]) > 0:
            quotas.append(int(limit[0]) / int(limit[1]))
    return max(1, int(min(quotas)))


def memory_bytes(
    groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup"), info: Path = Path("/proc/meminfo")
) -> int:
    """The memory of the machine, or of the group that this process is in where that is less."""
    limits = [int(line.split()[1]) * 1024 for line in _lines(info) if line.startswith("MemTotal:")]
    for folder in group_folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(folder / name) if word.isdigit()]
    if not limits:  # not Linux
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return min(limits)


def group_folders(controller: str, groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """The folders of the control groups that this process is in, version 1 and 2, from its own up to the root."""
    found = []
    for line in _lines(own):
        _, names, path = line.split(":", 2)
        if names == "":
            roots = [groups, groups / "unified"]
        elif controller in names.split(","):
            roots = [groups / names, groups / controller]
        else:
            continue
        for root in roots:
            folder = root / path.lstrip("/")
            found += [each for each in (folder, *folder.parents) if each == root or root in each.parents]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def frequency_ghz() -> float | None:
    """The highest clock of a core, if the system tells."""
    for name in ("cpuinfo_max_freq", "scaling_max_freq"):
        for word in _words(Path("/sys/devices/system/cpu/cpu0/cpufreq") / name):
            return int(word) / 1e6
    clocks = [float(line.split(":")[1]) for line in _lines(Path("/proc/cpuinfo")) if line.startswith("cpu MHz")]
    return round(max(clocks) / 1000, 3) if clocks else None


def title() -> str:
    """What the machine calls itself."""
    for line in _lines(Path("/proc/device-tree/model")):
        return line.strip("\0 ")
    names = [line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError):
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


# What it can do -----------------------------------------------------------------------------------------------------


def open_model(model: bytes, threads: int, optimised: bool = True) -> Callable[[], Any]:
    """A function that runs the model once on inputs of zeros, on so many threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feed = {each.name: np.zeros(each.shape, kinds[each.type]) for each in session.get_inputs()}
    return lambda: session.run(None, feed)


def median_s(call: Callable[[], Any], seconds: float, least: int = 5) -> float:
    """The median time of a call, repeated for so long and at least so often, after two calls to warm up."""
    times: list[float] = []
    call()
    call()
    deadline = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < deadline:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def compute_gflops(models: dict[str, dict[str, Any]], seconds: float, threads: int = 1) -> float:
    """fp32 operations per second of so many threads, in thousand millions: the better of two operators."""
    rates: list[float] = []
    for name in ("matmul", "conv3x3"):
        time_s = median_s(open_model(unpacked(models[name]), threads), seconds / 2)
        rates.append(models[name]["flops"] / time_s / 1e9)
    return max(rates)


def bandwidth_gbps(seconds: float, threads: int = 1, array_bytes: int = ARRAY_BYTES) -> float:
    """Bytes per second between threads and memory, in thousand millions: the better of a copy and a sum of arrays."""
    source, target = (np.ones(array_bytes // 4, np.float32) for _ in range(2))
    parts = [slice(i * len(source) // threads, (i + 1) * len(source) // threads) for i in range(threads)]

    def copy(part: slice) -> None:
        np.copyto(target[part], source[part])

    def add(part: slice) -> None:
        np.add(source[part], target[part], out=target[part])

    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for call, passes in ((copy, 2), (add, 3)):
            work = call  # bound here, since the loop moves on
            time_s = median_s(lambda: list(pool.map(work, parts)), seconds / 2)  # noqa: B023
            rates.append(passes * source.nbytes / time_s / 1e9)
    return max(rates)


def overhead_us(models: dict[str, dict[str, Any]], seconds: float) -> float:
    """Millionths of a second to start one operator: a long chain of tiny ones less a chain of one."""
    one, many = (open_model(unpacked(models[name]), 1, optimised=False) for name in ("chain1", "chain201"))
    return max(0.0, median_s(many, seconds / 2, 20) - median_s(one, seconds / 2, 20)) / 200 * 1e6


def operator_times(models: dict[str, dict[str, Any]], seconds: float) -> dict[str, dict[str, float]]:
    """The time of single operators on one thread, each beside what it has to do."""
    names = [name for name in models if not name.startswith("chain")]
    found = {}
    for name in names:
        time_s = median_s(open_model(unpacked(models[name]), 1), seconds / len(names))
        found[name] = {"time_s": time_s, "flops": models[name]["flops"], "moved_bytes": models[name]["moved_bytes"]}
    return found


def unpacked(model: dict[str, Any]) -> bytes:
    """The ONNX model, as its bytes."""
    return zlib.decompress(base64.b64decode(model["onnx"]))


# What it draws ------------------------------------------------------------------------------------------------------


def power_w(work: Callable[[], None], root: Path = SYSTEM) -> tuple[float, str] | None:
    """Watts while `work` runs, and which sensor said so; None where no sensor can be read."""
    counters = [each for each in sorted((root / "class/powercap").glob("intel-rapl:*")) if _is_package(each)]
    before = [_number(each / "energy_uj") for each in counters]
    if counters and None not in before:
        return _watts_of_counters(work, counters), "rapl: the processor alone"
    rails = _rails(root)
    return _watts_of_rails(work, rails) if rails else None


def _is_package(counter: Path) -> bool:
    """Neither a part of a package, "intel-rapl:0:1", nor the whole board, which holds the packages again."""
    return counter.name.count(":") == 1 and any(word.startswith("package") for word in _words(counter / "name"))


def _watts_of_counters(work: Callable[[], None], counters: list[Path]) -> float:
    def joules() -> list[float]:
        return [(_number(each / "energy_uj") or 0.0) / 1e6 for each in counters]

    before, start = joules(), time.perf_counter()
    work()
    passed, after = time.perf_counter() - start, joules()
    ranges = [(_number(each / "max_energy_range_uj") or 1e12) / 1e6 for each in counters]
    return sum((b - a) % most for a, b, most in zip(before, after, ranges)) / passed


def _rails(root: Path) -> dict[str, Callable[[], float | None]]:
    """Sensors of watts by name: INA chips on the board, as the kernel shows them, and hwmon's own."""
    rails: dict[str, Callable[[], float | None]] = {}

    def add(name: str, folder: Path, read: Callable[[], float | None]) -> None:
        if read() is not None:
            rails[f"{folder.name}/{name}"] = read

    for path in sorted(root.glob("bus/i2c/drivers/ina3221x/*/iio:device*/in_power*_input")):
        label = _words(path.parent / path.name.replace("in_power", "rail_name_").replace("_input", ""))
        add(" ".join(label) or path.name, path.parent, lambda path=path: _scaled(path, 1e3))  # type: ignore[misc]
    for path in sorted(root.glob("class/hwmon/hwmon*/power*_input")):
        label = _words(path.parent / path.name.replace("_input", "_label"))
        add(" ".join(label) or path.name, path.parent, lambda path=path: _scaled(path, 1e6))  # type: ignore[misc]
    for path in sorted(root.glob("class/hwmon/hwmon*/curr*_input")):
        volts = path.parent / path.name.replace("curr", "in")
        label = _words(path.parent / volts.name.replace("_input", "_label"))
        if volts.exists():
            add(" ".join(label) or path.name, path.parent, lambda a=path, v=volts: _product(a, v))  # type: ignore[misc]
    return rails


def _watts_of_rails(work: Callable[[], None], rails: dict[str, Callable[[], float | None]]) -> tuple[float, str]:
    """The mean of the rail that feeds the whole board: one called "…_IN", or else the one with the most watts."""
    samples: dict[str, list[float]] = {name: [] for name in rails}
    done = threading.Event()

    def watch() -> None:
        while True:
            for name, read in rails.items():
                samples[name] += [watts for watts in [read()] if watts is not None]
            if done.wait(0.02):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    means = {name: statistics.mean(values) for name, values in samples.items() if values}
    whole = [name for name in means if name.upper().endswith(("_IN", "/IN"))] or list(means)
    best = max(whole, key=lambda name: means[name])
    return means[best], "sensor " + best


def _product(amperes: Path, volts: Path) -> float | None:
    a, v = _scaled(amperes, 1e3), _scaled(volts, 1e3)
    return None if a is None or v is None else a * v


def _scaled(path: Path, unit: float) -> float | None:
    value = _number(path)
    return None if value is None else value / unit


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


# All of it ----------------------------------------------------------------------------------------------------------


def probe(models: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Everything that is found out about this machine, in about so many seconds."""
    cores, share = core_count(), seconds / 8

    def busy() -> None:
        median_s(open_model(unpacked(models["matmul"]), cores), share)

    idle_w, busy_w = power_w(lambda: time.sleep(share)), power_w(busy)
    steps = sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores})
    rates = {threads: compute_gflops(models, share / len(steps), threads) for threads in steps}
    size = min(ARRAY_BYTES, memory_bytes() // 16)
    alone = bandwidth_gbps(share / 2, 1, size)
    return {
        "onefold_probe": 1,
        "title": title(),
        "architecture": platform.machine(),
        "cores": cores,
        "memory_bytes": memory_bytes(),
        "frequency_ghz": frequency_ghz(),
        "gflops": compute_gflops(models, share),
        "bandwidth_gbps": max(alone, bandwidth_gbps(share / 2, cores, size)) if cores > 1 else alone,
        "bandwidth_of_one_core_gbps": alone,
        "overhead_us": overhead_us(models, share),
        "operators": operator_times(models, 2 * share),
        "speed_by_threads": {str(threads): rate / rates[1] for threads, rate in rates.items()},
        "idle_w": idle_w and idle_w[0],
        "busy_w": busy_w and busy_w[0],
        "power_source": busy_w and busy_w[1],
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "onnxruntime": ort.__version__},
    }


def main() -> None:
    """Probes this machine and writes what it found to the standard output."""
    parser = argparse.ArgumentParser(description="Finds out what this machine can do and writes it as JSON.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to take, about (default: 20)")
    json.dump(probe(MODELS, parser.parse_args().seconds), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
