"""The fast import of TVM."""

from __future__ import annotations

import logging
import sys

import pytest

from onefold.kernels import toolchain
from onefold.vocabulary.errors import InputError, MissingExtra


def test_only_needed_intrinsics_are_imported() -> None:
    assert toolchain.tvm() is toolchain.tvm()
    read = {name.rpartition(".")[2] for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin.")}
    assert read & {"x86", "arm_cpu"}
    assert not read & {"cuda", "rocm", "metal", "hexagon"}


def test_informational_logging_is_off() -> None:
    toolchain.tvm()
    assert not logging.getLogger("tvm.s_tir.meta_schedule").isEnabledFor(logging.INFO)


def test_a_missing_tvm_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(MissingExtra, match=r"apache-tvm is not installed; install it with: .*onefold\[kernels\]"):
        toolchain.tvm.__wrapped__()


def test_a_missing_linker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.check_linker()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="no C\\+\\+ compiler found to link kernels; install g\\+\\+"):
        toolchain.check_linker()
