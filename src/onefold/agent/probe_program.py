"""Benchmark a machine and print the result as JSON: a single-file program for any board that runs ONNX Runtime.

    python probe.py > board.json            needs Linux, Python 3.8, numpy and onnxruntime 1.14, or later versions

It measures compute, memory bandwidth, operator dispatch overhead, single operators in fp32 and int8, thread scaling,
and power if the board has a readable sensor. Add the result to Onefold with `onefold devices add board.json`. Onefold
calibrates the machine that it runs on with the same functions.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {}

ARRAY_BYTES = 64_000_000  # larger than the caches
COMPUTE, INT8_COMPUTE = ("matmul", "conv3x3"), ("matmul-int8", "conv3x3-int8")
THREAD_TURNS = 3
GROUPS = Path("/sys/fs/cgroup")
SYSTEM = Path("/sys")


# Description of the machine -----------------------------------------------------------------------------------------


def core_count(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the number of cores that this process may use, limited by the CPU quota of its control group."""
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
    """Return the memory of the machine, limited by the control group of this process."""
    limits = [int(line.split()[1]) * 1024 for line in _lines(info) if line.startswith("MemTotal:")]
    for folder in group_folders("memory", groups, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(folder / name) if word.isdigit()]
    if not limits:  # not Linux
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return min(limits)


def group_folders(controller: str, groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the folders of the control groups (version 1 and 2) of this process, from its own up to the root."""
    folders = []
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
            folders += [group for group in (folder, *folder.parents) if group == root or root in group.parents]
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def frequency_ghz() -> float | None:
    """Return the maximum clock frequency of a core; None if the system does not report it."""
    for name in ("cpuinfo_max_freq", "scaling_max_freq"):
        for word in _words(Path("/sys/devices/system/cpu/cpu0/cpufreq") / name):
            return int(word) / 1e6
    clocks = [float(line.split(":")[1]) for line in _lines(Path("/proc/cpuinfo")) if line.startswith("cpu MHz")]
    return round(max(clocks) / 1000, 3) if clocks else None


def title() -> str:
    """Return the model name of the board or processor."""
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


# Benchmarks ---------------------------------------------------------------------------------------------------------


def open_model(model: bytes, threads: int, optimized: bool = True) -> Callable[[], Any]:
    """Return a function that runs the model once on zeros with this number of threads."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when it is imported
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    feed = {value.name: np.zeros(value.shape, dtypes[value.type]) for value in session.get_inputs()}
    return lambda: session.run(None, feed)


def median_s(call: Callable[[], Any], seconds: float, min_runs: int = 5) -> float:
    """Return the median time of a call, repeated for `seconds` and at least `min_runs` times after two warm-ups."""
    return statistics.median(call_times(call, seconds, min_runs))


def call_times(
    call: Callable[[], Any], seconds: float, min_runs: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the times of a call by a clock, for `seconds` and at least `min_runs` times after two warm-ups."""
    times: list[float] = []
    call()
    call()
    deadline = time.perf_counter() + seconds
    while len(times) < min_runs or time.perf_counter() < deadline:
        before = clock()
        call()
        times.append(clock() - before)
    return times


def median_cpu_s(call: Callable[[], Any], seconds: float, min_runs: int = 5) -> float:
    """Return the median processor time that a call takes of this thread, which programs beside it hardly change.

    Only for calls that run in this thread. Where the system has no fine clock of processor time, it is wall time.
    """
    is_fine = time.get_clock_info("thread_time").resolution <= 1e-6
    return statistics.median(call_times(call, seconds, min_runs, time.thread_time if is_fine else time.perf_counter))


def compute_gflops(
    models: dict[str, dict[str, Any]], seconds: float, threads: int = 1, names: Sequence[str] = COMPUTE
) -> float:
    """Return the GFLOP/s of this number of threads: the higher of a matrix product and a convolution."""
    rates: list[float] = []
    for name in names:
        timed = median_cpu_s if threads == 1 else median_s
        time_s = timed(open_model(unpack(models[name]), threads), seconds / len(names))
        rates.append(models[name]["flops"] / time_s / 1e9)
    return max(rates)


def speed_by_threads(models: dict[str, dict[str, Any]], seconds: float, cores: int) -> dict[int, float]:
    """Return the speed of 1, 2, 4, … and all cores relative to one thread, of a matrix product and a convolution.

    The thread counts take turns, and the fast calls count: programs beside it only slow down.
    """
    steps = sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores})
    calls = {(threads, name): open_model(unpack(models[name]), threads) for threads in steps for name in COMPUTE}
    times: dict[tuple[int, str], list[float]] = {key: [] for key in calls}
    for _ in range(THREAD_TURNS):
        for key, call in calls.items():
            times[key] += call_times(call, seconds / len(calls) / THREAD_TURNS)
    fast_s = {key: sorted(each)[len(each) // 20] for key, each in times.items()}
    return {threads: max(fast_s[1, name] / fast_s[threads, name] for name in COMPUTE) for threads in steps}


def bandwidth_gbps(seconds: float, threads: int = 1, array_bytes: int = ARRAY_BYTES) -> float:
    """Return the memory bandwidth in GB/s: the higher of copying and adding arrays."""
    import numpy as np

    source, target = (np.ones(array_bytes // 4, np.float32) for _ in range(2))
    parts = [slice(i * len(source) // threads, (i + 1) * len(source) // threads) for i in range(threads)]

    def copy(part: slice) -> None:
        np.copyto(target[part], source[part])

    def add(part: slice) -> None:
        np.add(source[part], target[part], out=target[part])

    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for call, passes in ((copy, 2), (add, 3)):
            work = call  # bind the loop variable
            if threads == 1:
                time_s = median_cpu_s(lambda: work(parts[0]), seconds / 2)  # noqa: B023
            else:
                time_s = median_s(lambda: list(pool.map(work, parts)), seconds / 2)  # noqa: B023
            rates.append(passes * source.nbytes / time_s / 1e9)
    return max(rates)


def dispatch_us(models: dict[str, dict[str, Any]], seconds: float) -> tuple[float, float]:
    """Return the dispatch overhead of one operator in µs, and that of a call of the runtime.

    They follow from a chain of 201 tiny operators and a chain of one.
    """
    short, long = (open_model(unpack(models[name]), 1, optimized=False) for name in ("chain1", "chain201"))
    call_s, chain_s = median_cpu_s(short, seconds / 2, 20), median_cpu_s(long, seconds / 2, 20)
    operator_us = max(0.0, chain_s - call_s) / 200 * 1e6
    return operator_us, max(0.0, call_s * 1e6 - operator_us)


def operator_times(models: dict[str, dict[str, Any]], seconds: float) -> dict[str, dict[str, float]]:
    """Return the time of single operators on one thread, with their FLOPs and memory traffic."""
    names = [name for name in models if not name.startswith("chain")]
    times = {}
    for name in names:
        time_s = median_cpu_s(open_model(unpack(models[name]), 1), seconds / len(names))
        times[name] = {"time_s": time_s, "flops": models[name]["flops"], "moved_bytes": models[name]["moved_bytes"]}
    return times


def unpack(model: dict[str, Any]) -> bytes:
    """Return the serialized ONNX model."""
    return zlib.decompress(base64.b64decode(model["onnx"]))


# Power --------------------------------------------------------------------------------------------------------------


def power_w(work: Callable[[], None], root: Path = SYSTEM) -> tuple[float, str] | None:
    """Return the power in watts while `work` runs, and the sensor; None if no sensor can be read."""
    counters = [path for path in sorted((root / "class/powercap").glob("intel-rapl:*")) if is_package(path)]
    before = [read_number(path / "energy_uj") for path in counters]
    if counters and None not in before:
        return _watts_of_counters(work, counters), "rapl: CPU package only"
    rails = power_rails(root)
    return _watts_of_rails(work, rails) if rails else None


def is_package(counter: Path) -> bool:
    """Exclude the domains within a package ("intel-rapl:0:1") and the whole board (psys), which includes packages."""
    return counter.name.count(":") == 1 and any(word.startswith("package") for word in _words(counter / "name"))


def _watts_of_counters(work: Callable[[], None], counters: list[Path]) -> float:
    def joules() -> list[float]:
        return [(read_number(path / "energy_uj") or 0.0) / 1e6 for path in counters]

    before, start = joules(), time.perf_counter()
    work()
    passed, after = time.perf_counter() - start, joules()
    ranges = [(read_number(path / "max_energy_range_uj") or 1e12) / 1e6 for path in counters]
    return sum((b - a) % wraps_at for a, b, wraps_at in zip(before, after, ranges)) / passed


def power_rails(root: Path) -> dict[str, Callable[[], float | None]]:
    """Return power sensors by name: INA3221 chips (industrial I/O) and hwmon sensors."""
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
    """Return the mean power of the board's input rail: the one named "…_IN", or else the one with the highest power."""
    samples: dict[str, list[float]] = {name: [] for name in rails}
    done = threading.Event()

    def sample() -> None:
        while True:
            for name, read in rails.items():
                samples[name] += [watts for watts in [read()] if watts is not None]
            if done.wait(0.02):
                return

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    means = {name: statistics.mean(values) for name, values in samples.items() if values}
    inputs = [name for name in means if name.upper().endswith(("_IN", "/IN"))] or list(means)
    rail = max(inputs, key=lambda name: means[name])
    return means[rail], "sensor " + rail


def _product(amperes: Path, volts: Path) -> float | None:
    a, v = _scaled(amperes, 1e3), _scaled(volts, 1e3)
    return None if a is None or v is None else a * v


def _scaled(path: Path, unit: float) -> float | None:
    value = read_number(path)
    return None if value is None else value / unit


def read_number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


# The program --------------------------------------------------------------------------------------------------------


def probe(models: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Run all benchmarks within about `seconds` and return the result."""
    cores, share = core_count(), seconds / 8

    def busy() -> None:
        median_s(open_model(unpack(models["matmul"]), cores), share)

    idle_w, busy_w = power_w(lambda: time.sleep(share)), power_w(busy)
    speeds = speed_by_threads(models, share, cores)
    operator_us, call_us = dispatch_us(models, share)
    size = min(ARRAY_BYTES, memory_bytes() // 16)
    single = bandwidth_gbps(share / 2, 1, size)
    return {
        "onefold_probe": 1,
        "title": title(),
        "architecture": platform.machine(),
        "cores": cores,
        "memory_bytes": memory_bytes(),
        "frequency_ghz": frequency_ghz(),
        "gflops": compute_gflops(models, share / 2),
        "bandwidth_gbps": max(single, bandwidth_gbps(share / 2, cores, size)) if cores > 1 else single,
        "bandwidth_of_one_core_gbps": single,
        "int8_gops": compute_gflops(models, share / 2, names=INT8_COMPUTE),
        "overhead_us": operator_us,
        "call_us": call_us,
        "operators": operator_times(models, 2 * share),
        "speed_by_threads": {str(threads): speed for threads, speed in speeds.items()},
        "idle_w": idle_w and idle_w[0],
        "busy_w": busy_w and busy_w[0],
        "power_source": busy_w and busy_w[1],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that measure."""
    import numpy as np
    import onnxruntime as ort

    return {"python": platform.python_version(), "numpy": np.__version__, "onnxruntime": ort.__version__}


def main() -> None:
    """Benchmark this machine and print the result."""
    parser = argparse.ArgumentParser(description="Benchmark this machine and print the result as JSON.")
    parser.add_argument("--seconds", type=float, default=20.0, help="approximate duration (default: 20)")
    json.dump(probe(MODELS, parser.parse_args().seconds), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
