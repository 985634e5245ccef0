"""What code is made for: a processor as the compiler knows it."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from onefold.device import Device
from onefold.kernels.toolchain import learn_patterns, tvm
from onefold.vocabulary.errors import DeviceError, suggestion

# Processors of the catalogue's boards. A board that is not here is compiled for what all of its kind understand.
PROCESSORS = {
    "raspberry-pi-3b-plus": "cortex-a53",
    "raspberry-pi-4": "cortex-a72",
    "raspberry-pi-5": "cortex-a76",
    "jetson-nano": "cortex-a57",
    "jetson-xavier-nx": "carmel",
    "intel-nuc-i7-7567u": "skylake",
}
KINDS = {  # by architecture: the triple, and the processor that all of them can stand in for
    "aarch64": ("aarch64-linux-gnu", "generic"),
    "armv7l": ("armv7l-linux-gnueabihf", "cortex-a7"),
    "x86_64": ("x86_64-linux-gnu", "x86-64-v3"),
}
WIDE, NARROW = {"avx512f": 16, "avx": 8}, 4  # numbers of 32 bits in a vector


@dataclass(frozen=True, slots=True)
class Target:
    """A processor and how many of its cores serve."""

    processor: str
    triple: str  # of another architecture than this machine's; empty for this one
    cores: int

    @property
    def name(self) -> str:
        """As the store knows it. Candidates for different numbers of cores are told apart by their threads."""
        return f"{self.triple or platform.machine()} {self.processor}"

    @property
    def is_here(self) -> bool:
        """Whether this machine can run what is compiled for it."""
        return not self.triple

    @property
    def about(self) -> dict[str, Any]:
        """In TVM's words."""
        found: dict[str, Any] = {"kind": "llvm", "mcpu": self.processor, "num-cores": self.cores}
        return found | {"mtriple": self.triple} if self.triple else found

    @property
    def lanes(self) -> int:
        """How many numbers of 32 bits its vectors hold."""
        has = tvm().get_global_func("target.target_has_feature")  # TVM's own answer is 512 bits for all x86
        return next((lanes for feature, lanes in WIDE.items() if has(feature, self.opened())), NARROW)

    def opened(self) -> Any:
        """As TVM wants it."""
        return _opened(self)


@cache
def _opened(target: Target) -> Any:
    about, processor = target.about, target.processor
    tvm()
    if target.triple:
        learn_patterns(target.triple)
    known = tvm().get_global_func("target.llvm_get_cpu_archlist")(tvm().target.Target({**about, "mcpu": "generic"}))
    names = {str(one) for one in known}
    if processor not in names:  # TVM would say so on stderr and go on with a generic one
        raise DeviceError(f"the compiler does not know the processor {processor!r}{suggestion(processor, names)}")
    try:
        return tvm().target.Target(about)
    except Exception as error:  # TVM raises many kinds
        told = str(error).strip().splitlines()[-1]
        raise DeviceError(f"the compiler does not know {json.dumps(about)}: {told}") from error


def target_of(device: Device, threads: int | None = None, *, is_host: bool, processor: str | None = None) -> Target:
    """The target that a device is; `processor` replaces what is known of it, in LLVM's words."""
    cores = threads or device.cores
    if cores > device.cores:
        raise DeviceError(f"{device.name} has {device.cores} cores, but {cores} threads were asked for")
    if is_host:
        return Target(processor or _this_processor(), "", cores)
    if device.architecture not in KINDS:
        raise DeviceError(
            f"kernels are compiled for {', '.join(KINDS)}; {device.name} has the architecture "
            f"{device.architecture or 'unknown'!r}: give it one of these in its TOML file"
        )
    triple, generic = KINDS[device.architecture]
    return Target(processor or PROCESSORS.get(device.name, generic), triple, cores)


def _this_processor() -> str:
    return str(tvm().get_global_func("target.llvm_get_system_cpu")())
