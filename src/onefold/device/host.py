"""This machine as a device: its description and its calibration by measurement."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from onefold.device.catalog import HOST, device, read_devices, save_device
from onefold.device.device import MAX_SPREAD, Device
from onefold.device.operator_groups import STREAM
from onefold.meter.modelled import DEFAULT_WATTS, WATTS_PER_BUSY_CORE
from onefold.vocabulary.errors import DeviceError
from onefold.vocabulary.quantities import share

PASSES, MAX_PASSES = 5, 8
THREAD_ATTEMPTS = 3
QUALITY_FIGURES = ("gflops", "int8_gops", "overhead_us", STREAM)

_POWER = "power modelled: {:g} W per busy core, without the idle power of the machine"


def find_device(name: str, folder: Path) -> Device:
    """Return the device of this name; `host` is this machine. Raises DeviceError, which suggests the closest name."""
    return host(folder) if name == HOST else device(name, folder)


def describe() -> Device:
    """Return this machine with what the system reports; compute, bandwidth and overhead are NaN until `calibrate`.

    Cores are those that this process may use, and memory is limited by its control group. Power is that of the modelled
    meter: a constant per busy core and nothing for an idle machine.
    """
    from onefold.agent import probe_program

    architecture = platform.machine()
    cores = probe_program.core_count()
    watts = WATTS_PER_BUSY_CORE.get(architecture, DEFAULT_WATTS)
    return Device(
        name=HOST,
        title=f"This machine ({probe_program.title()})",
        cores=cores,
        gflops=math.nan,
        bandwidth_gbps=math.nan,
        memory_bytes=probe_program.memory_bytes(),
        idle_w=0.0,
        busy_w=watts * cores,
        architecture=architecture,
        frequency_ghz=probe_program.frequency_ghz(),
        overhead_us=math.nan,
        source="calibrated",
        note=f"not calibrated yet; {_POWER.format(watts)}",
    )


def calibrate(seconds: float = 2.0) -> Device:
    """Return this machine with the figures of the probe measured within about `seconds`.

    Single-threaded figures are processor times, which programs beside it hardly change; those of several threads are
    the fastest. Every figure is the median of PASSES passes; disturbed passes are repeated, and at most MAX_PASSES are
    made. `spread` is the quality: by how much the passes differ at the figure where they differ most.
    """
    from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention
    from onefold.device.probe import probe_models

    described, models = describe(), probe_models()
    passes: list[tuple[float, dict[str, float]]] = []
    while len(passes) < MAX_PASSES and sum(taken <= NEGLIGIBLE for taken, _ in passes) < PASSES:
        with CpuContention(1) as contention:
            figures = _single_thread_figures(models, seconds * 0.8 / PASSES, described)
        passes.append((contention.share, figures))
    kept = [figures for _, figures in sorted(passes, key=lambda each: each[0])[:PASSES]]
    medians = {name: median(figures[name] for figures in kept) for name in kept[0]}
    spread = max(_spread([figures[name] for figures in kept]) for name in QUALITY_FIGURES)
    speeds, threads_note = _thread_speeds(models, seconds * 0.2, described.cores)
    watts_per_core = described.busy_w / described.cores
    return replace(
        described,
        gflops=medians["gflops"],
        bandwidth_gbps=max(medians["bandwidth_gbps"], medians[STREAM]),
        int8_gops=medians["int8_gops"],
        overhead_us=medians["overhead_us"],
        call_us=medians["call_us"],
        operator_rates=tuple((name, rate) for name, rate in medians.items() if name not in _FIGURES),
        thread_speed=speeds,
        spread=round(spread, 4),
        note=f"compute, bandwidth and overhead measured on this machine; {_agreement(spread)}"
        f"{threads_note}; "
        f"{_POWER.format(watts_per_core)}",
    )


def _single_thread_figures(models: dict[str, dict[str, Any]], seconds: float, described: Device) -> dict[str, float]:
    """Return the figures of one pass by the names of fields, and the rates by groups of operators."""
    from onefold.agent import probe_program
    from onefold.device.probe import operator_figures

    operators = probe_program.operator_times(models, seconds * 0.5)
    operator_us, call_us = probe_program.dispatch_us(models, seconds * 0.2)
    size = min(probe_program.ARRAY_BYTES, described.memory_bytes // 16)
    figures = operator_figures({"operators": operators, "call_us": call_us})
    rates: dict[str, float] = dict(figures["operator_rates"])
    return {
        "gflops": max(rates["matmul"], rates["conv3x3"]),
        "int8_gops": max(rates["matmul-int8"], rates["conv3x3-int8"]),
        "overhead_us": operator_us,
        "call_us": call_us,
        "bandwidth_gbps": probe_program.bandwidth_gbps(seconds * 0.15, described.cores, size),
        STREAM: probe_program.bandwidth_gbps(seconds * 0.15, 1, size),
        **rates,
    }


def _thread_speeds(
    models: dict[str, dict[str, Any]], seconds: float, cores: int
) -> tuple[tuple[tuple[int, float], ...], str]:
    """Return the speed by number of threads; none, and a note, if other programs take the cores at every attempt."""
    from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention
    from onefold.agent.probe_program import speed_by_threads

    for _ in range(THREAD_ATTEMPTS if cores > 1 else 0):
        with CpuContention(cores) as contention:
            speeds = speed_by_threads(models, seconds, cores)
        if contention.share <= NEGLIGIBLE:
            return tuple(sorted(speeds.items())), ""
    return (
        (),
        f"; the speed of threads is unknown, since other programs took {share(contention.share)}" if cores > 1 else "",
    )


_FIGURES = ("gflops", "int8_gops", "overhead_us", "call_us", "bandwidth_gbps")


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / median(values) if median(values) else 0.0


def _agreement(spread: float) -> str:
    if spread <= MAX_SPREAD:
        return f"{PASSES} passes agree within {share(spread)}"
    return f"{PASSES} passes differ by {share(spread)}, so calibrate again on a quiet machine"


def change_of_figures(before: Device, after: Device) -> tuple[str, float]:
    """Return the figure in which two calibrations differ most, and by what share of the earlier one."""
    pairs = {name: (_quality_figures(before).get(name), value) for name, value in _quality_figures(after).items()}
    changes = {name: abs(new / old - 1) for name, (old, new) in pairs.items() if old}
    return max(changes.items(), key=lambda change: change[1], default=("gflops", 0.0))


def _quality_figures(device: Device) -> dict[str, float]:
    figures = {name: getattr(device, name) or 0.0 for name in QUALITY_FIGURES if name != STREAM}
    return {**figures, STREAM: dict(device.operator_rates).get(STREAM, 0.0)}


def host(folder: Path, seconds: float = 2.0) -> Device:
    """Return this machine with the calibration cached in `folder`, or calibrate it now and save it there.

    A calibration for other cores or another architecture, one by an earlier version, or one that cannot be read is
    repeated.
    """
    now = describe()
    path = folder / f"{HOST}.toml"
    with suppress(DeviceError):
        saved = [device for device in read_devices(path) if device.name == HOST]
        is_current = saved and saved[0].operator_rates  # earlier versions measured fewer figures
        if is_current and (saved[0].cores, saved[0].architecture) == (now.cores, now.architecture):
            return saved[0]
    calibrated = calibrate(seconds)
    save_device(calibrated, folder)
    return calibrated
