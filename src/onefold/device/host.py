"""This machine as a device: what it is, and what it can do, found out by measuring."""

from __future__ import annotations

import math
import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onefold.device.catalogue import HOST, device, read_devices, save_device
from onefold.device.device import Device
from onefold.meter.modelled import WATTS_OF_OTHERS, WATTS_PER_BUSY_CORE
from onefold.vocabulary.errors import DeviceError

_POWER = "power modelled: {:g} W for each busy core, the idle machine left out"


def find_device(name: str, folder: Path) -> Device:
    """The device of this name; `host` is this machine. DeviceError with the nearest name when there is none."""
    return host(folder) if name == HOST else device(name, folder)


def describe() -> Device:
    """What can be read about this machine. Compute, bandwidth and overhead are NaN: only `calibrate` knows them.

    Cores are those that this process may use, memory that of its control group where it is less than the machine's.
    Power is that of the modelled meter: watts of busy cores, nothing for an idle machine.
    """
    from onefold.device import probe_program

    architecture = platform.machine()
    cores = probe_program.core_count()
    watts = WATTS_PER_BUSY_CORE.get(architecture, WATTS_OF_OTHERS)
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
    """This machine with what it can do, measured in about so many seconds.

    Compute and overhead are those of one thread. Bandwidth is the better of one thread and of all cores together.
    Each figure is a median; what else runs meanwhile is in it, so call it while the machine is quiet.
    """
    from onefold.device import probe_program
    from onefold.device.probe import probe_models

    found, models = describe(), probe_models()
    gflops = probe_program.compute_gflops(models, seconds * 0.4)
    overhead_us = probe_program.overhead_us(models, seconds * 0.2)
    size = min(probe_program.ARRAY_BYTES, found.memory_bytes // 16)
    bandwidths = [probe_program.bandwidth_gbps(seconds * 0.2, threads, size) for threads in {1, found.cores}]
    return replace(
        found,
        gflops=gflops,
        bandwidth_gbps=max(bandwidths),
        overhead_us=overhead_us,
        note=f"compute, bandwidth and overhead measured on this machine; {_POWER.format(found.busy_w / found.cores)}",
    )


def host(folder: Path, seconds: float = 2.0) -> Device:
    """This machine, calibrated: as `folder` has it, or measured now and saved there.

    A calibration that was made with other cores or on another architecture, or that cannot be read, is made again.
    """
    now = describe()
    path = folder / f"{HOST}.toml"
    with suppress(DeviceError):
        saved = [device for device in read_devices(path) if device.name == HOST]
        if saved and (saved[0].cores, saved[0].architecture) == (now.cores, now.architecture):
            return saved[0]
    found = calibrate(seconds)
    save_device(found, folder)
    return found
