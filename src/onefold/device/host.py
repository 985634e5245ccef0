"""This machine as a device: its description and its calibration by measurement."""

from __future__ import annotations

import math
import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onefold.device.catalog import HOST, device, read_devices, save_device
from onefold.device.device import Device
from onefold.meter.modelled import DEFAULT_WATTS, WATTS_PER_BUSY_CORE
from onefold.vocabulary.errors import DeviceError

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
    """Return this machine with compute, bandwidth and overhead measured within about `seconds`.

    Compute and overhead are those of one thread; bandwidth is the higher of one thread and all cores. Each figure is a
    median that includes contention, so calibrate on a quiet machine.
    """
    from onefold.agent import probe_program
    from onefold.device.probe import probe_models

    described, models = describe(), probe_models()
    gflops = probe_program.compute_gflops(models, seconds * 0.4)
    overhead_us = probe_program.overhead_us(models, seconds * 0.2)
    size = min(probe_program.ARRAY_BYTES, described.memory_bytes // 16)
    bandwidths = [probe_program.bandwidth_gbps(seconds * 0.2, threads, size) for threads in {1, described.cores}]
    watts_per_core = described.busy_w / described.cores
    return replace(
        described,
        gflops=gflops,
        bandwidth_gbps=max(bandwidths),
        overhead_us=overhead_us,
        note=f"compute, bandwidth and overhead measured on this machine; {_POWER.format(watts_per_core)}",
    )


def host(folder: Path, seconds: float = 2.0) -> Device:
    """Return this machine with the calibration cached in `folder`, or calibrate it now and save it there.

    A calibration for other cores or another architecture, or one that cannot be read, is repeated.
    """
    now = describe()
    path = folder / f"{HOST}.toml"
    with suppress(DeviceError):
        saved = [device for device in read_devices(path) if device.name == HOST]
        if saved and (saved[0].cores, saved[0].architecture) == (now.cores, now.architecture):
            return saved[0]
    calibrated = calibrate(seconds)
    save_device(calibrated, folder)
    return calibrated
