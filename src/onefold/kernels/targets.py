"""Compilation targets: a processor in LLVM's terms and the number of cores."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from onefold.device import Device
from onefold.kernels.toolchain import register_intrinsics, tvm
from onefold.vocabulary.errors import DeviceError, unknown

# LLVM names of the processors of the catalog's boards. Other boards are compiled for their architecture's baseline.
PROCESSORS = {
    "raspberry-pi-3b-plus": "cortex-a53",
    "raspberry-pi-4": "cortex-a72",
    "raspberry-pi-5": "cortex-a76",
    "jetson-nano": "cortex-a57",
    "jetson-xavier-nx": "carmel",
    "intel-nuc-i7-7567u": "skylake",
}
ARCHITECTURES = {  # LLVM triple and baseline processor
    "aarch64": ("aarch64-linux-gnu", "generic"),
    "armv7l": ("armv7l-linux-gnueabihf", "cortex-a7"),
    "x86_64": ("x86_64-linux-gnu", "x86-64-v3"),
}
FLOAT_LANES, DEFAULT_LANES = {"avx512f": 16, "avx": 8}, 4  # 32-bit floats in a vector register, by CPU feature


@dataclass(frozen=True, slots=True)
class Target:
    """A processor and the number of cores that run the model."""

    processor: str
    triple: str  # empty for this machine
    cores: int

    @property
    def name(self) -> str:
        """Return the name in the store. Candidates also record their threads, so the number of cores is left out."""
        return f"{self.triple or platform.machine()} {self.processor}"

    @property
    def is_host(self) -> bool:
        """Return whether this machine can run code for the target."""
        return not self.triple

    @property
    def library_suffix(self) -> str:
        """Return the suffix of a compiled library: another machine links an archive of objects itself."""
        return ".so" if self.is_host else ".tar"

    @property
    def tvm_config(self) -> dict[str, Any]:
        """Return the target as a TVM target configuration."""
        config: dict[str, Any] = {"kind": "llvm", "mcpu": self.processor, "num-cores": self.cores}
        return config | {"mtriple": self.triple} if self.triple else config

    @property
    def vector_lanes(self) -> int:
        """Return how many 32-bit floats a vector register holds."""
        has_feature = tvm().get_global_func("target.target_has_feature")  # TVM's own width is 512 bits on every x86
        return next(
            (lanes for feature, lanes in FLOAT_LANES.items() if has_feature(feature, self.tvm_target())), DEFAULT_LANES
        )

    def tvm_target(self) -> Any:
        """Return the `tvm.target.Target`. Raises DeviceError if LLVM does not know the processor."""
        return _tvm_target(self)


@cache
def _tvm_target(target: Target) -> Any:
    config, processor = target.tvm_config, target.processor
    tvm()
    if target.triple:
        register_intrinsics(target.triple)
    generic = tvm().target.Target({**config, "mcpu": "generic"})
    processors = {str(name) for name in tvm().get_global_func("target.llvm_get_cpu_archlist")(generic)}
    if processor not in processors:  # TVM would warn on stderr and compile for a generic one
        raise DeviceError(unknown("processor", processor, processors, of="LLVM"))
    try:
        return tvm().target.Target(config)
    except Exception as error:  # TVM raises many types
        reason = str(error).strip().splitlines()[-1]
        raise DeviceError(f"TVM rejects the target {json.dumps(config)}: {reason}") from error


def target_of(device: Device, threads: int | None = None, *, is_host: bool, processor: str | None = None) -> Target:
    """Return the target of a device.

    Args:
        device: The device to compile for.
        threads: Threads that run the model; None uses all cores.
        is_host: Whether the device is this machine.
        processor: LLVM name of the processor; None uses what is known of the device.

    Raises:
        DeviceError: The device has fewer cores, or an architecture that kernels cannot be compiled for.
    """
    cores = threads or device.cores
    if cores > device.cores:
        raise DeviceError(f"{device.name} has {device.cores} cores, got threads={cores}")
    if is_host:
        return Target(processor or _host_processor(), "", cores)
    if device.architecture not in ARCHITECTURES:
        raise DeviceError(
            f"kernels can be compiled for {', '.join(ARCHITECTURES)}; {device.name} has the architecture "
            f"{device.architecture or 'unknown'!r}: set one of these in its TOML file"
        )
    triple, generic = ARCHITECTURES[device.architecture]
    return Target(processor or PROCESSORS.get(device.name, generic), triple, cores)


def _host_processor() -> str:
    return str(tvm().get_global_func("target.llvm_get_system_cpu")())
