"""TVM, imported the quick way.

`import tvm.s_tir.tensor_intrin` parses hundreds of instruction patterns of all processors and takes half a minute where
torch is loaded. Only those of the processors that code is made for are needed.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from onefold.vocabulary.errors import InputError, MissingExtra

_INTRINSICS = "tvm.s_tir.tensor_intrin"


@cache
def tvm() -> Any:
    """The package, ready to tune."""
    try:
        import tvm as found
    except ImportError as error:
        raise MissingExtra("apache-tvm", "kernels") from error
    package = types.ModuleType(_INTRINSICS)
    package.__path__ = [str(Path(found.__path__[0]) / "s_tir" / "tensor_intrin")]
    sys.modules[_INTRINSICS] = package
    importlib.import_module("tvm.s_tir").tensor_intrin = package  # type: ignore[attr-defined]
    learn_patterns(platform.machine())
    for chatty in ("tvm", "tvm.s_tir.meta_schedule"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return found


def learn_patterns(architecture: str) -> None:
    """Makes the instructions of a kind of processor known; a second for each kind."""
    name = "arm_cpu" if architecture.startswith(("aarch64", "arm")) else "x86"
    importlib.import_module(f"{_INTRINSICS}.{name}")


@cache
def schedules() -> Any:
    """Its tuner."""
    tvm()
    return importlib.import_module("tvm.s_tir.meta_schedule")


@contextmanager
def unheard() -> Iterator[None]:
    """Without what the compiler writes past Python to the error stream: it warns of rules of pooling layers that it
    does not have, and goes on without them."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_linker() -> None:
    """Libraries are linked by the system's C++ compiler."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise InputError("no C++ compiler was found to link kernels with; install g++ (on Debian: apt install g++)")
