"""TVM, imported the quick way."""

from __future__ import annotations

import logging
import sys

import pytest

from onefold.kernels import toolchain
from onefold.vocabulary.errors import InputError, MissingExtra


def test_only_patterns_that_are_needed_are_read() -> None:
    assert toolchain.tvm() is toolchain.tvm()
    read = {name.rpartition(".")[2] for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin.")}
    assert read & {"x86", "arm_cpu"}
    assert not read & {"cuda", "rocm", "metal", "hexagon"}


def test_it_keeps_quiet() -> None:
    toolchain.tvm()
    assert not logging.getLogger("tvm.s_tir.meta_schedule").isEnabledFor(logging.INFO)


def test_where_it_is_not_installed_it_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(MissingExtra, match=r"apache-tvm is not installed; install it with: .*onefold\[kernels\]"):
        toolchain.tvm.__wrapped__()


def test_without_a_linker_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.check_linker()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="no C\\+\\+ compiler was found to link kernels with; install g\\+\\+"):
        toolchain.check_linker()
