"""Compilation targets of devices."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from onefold.device import Device
from onefold.device.catalog import device, devices
from onefold.device.host import describe
from onefold.kernels.targets import PROCESSORS, Target, target_of
from onefold.vocabulary.errors import DeviceError

PI = device("raspberry-pi-4")


def test_the_host_target_is_its_own_processor(here: Target) -> None:
    assert here.is_host
    assert here.name == f"{platform.machine()} {here.processor}"
    opened = here.tvm_target()
    assert (str(opened.attrs["mcpu"]), int(opened.attrs["num-cores"])) == (here.processor, 1)
    assert here.tvm_target() is opened


def test_all_cores_are_used_by_default() -> None:
    assert target_of(PI, is_host=False).cores == PI.cores
    assert target_of(PI, 2, is_host=False).cores == 2
    assert target_of(describe(), is_host=True).cores == describe().cores


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raspberry-pi-4", Target("cortex-a72", "aarch64-linux-gnu", 4)),
        ("jetson-xavier-nx", Target("carmel", "aarch64-linux-gnu", 6)),
        ("armv7-board", Target("cortex-a7", "armv7l-linux-gnueabihf", 4)),  # the baseline of its architecture
        ("cloud-vcpu-pair", Target("x86-64-v3", "x86_64-linux-gnu", 2)),
    ],
)
def test_boards_of_the_catalog(name: str, expected: Target) -> None:
    result = target_of(device(name), is_host=False)
    assert result == expected
    assert not result.is_host
    assert result.name == f"{expected.triple} {expected.processor}"


@pytest.mark.parametrize("board", devices().values(), ids=lambda board: board.name)
def test_llvm_knows_every_board(board: Device) -> None:
    opened = target_of(board, is_host=False).tvm_target()
    assert ("arm_cpu" in opened.keys) == (board.architecture != "x86_64")


def test_every_processor_is_that_of_a_board() -> None:
    assert set(PROCESSORS) <= set(devices())


def test_the_processor_can_be_overridden() -> None:
    assert target_of(PI, is_host=False, processor="cortex-a53").processor == "cortex-a53"
    assert target_of(describe(), is_host=True, processor="generic").processor == "generic"


def test_an_unknown_processor_is_an_error() -> None:
    with pytest.raises(DeviceError, match="unknown processor 'cortex-a722' of LLVM; did you mean 'cortex-a72'"):
        target_of(PI, is_host=False, processor="cortex-a722").tvm_target()


@pytest.mark.parametrize(("architecture", "said"), [("riscv64", "'riscv64'"), ("", "'unknown'")])
def test_an_unknown_architecture_is_an_error(architecture: str, said: str) -> None:
    board = replace(PI, architecture=architecture)
    with pytest.raises(DeviceError, match=f"compiled for aarch64, armv7l, x86_64; raspberry-pi-4 has .* {said}"):
        target_of(board, is_host=False)


def test_more_threads_than_cores_are_an_error() -> None:
    with pytest.raises(DeviceError, match="raspberry-pi-4 has 4 cores, got threads=5"):
        target_of(PI, 5, is_host=False)
