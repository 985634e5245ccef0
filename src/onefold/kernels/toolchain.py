"""Imports TVM without its slow parts.

`import tvm.s_tir.tensor_intrin` parses the tensor intrinsics of all processors. Only those of the processors that
kernels are compiled for are needed.
"""

from __future__ import annotations

import importlib
import inspect
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
# TVM's parser lists the frames of the stack for each intrinsic, and `inspect` searches all modules for each frame of
# the import system, since it has no source file: with torch imported, that takes seconds.
_IMPORT_FRAMES = {f"<frozen {name}>": name for name in ("importlib._bootstrap", "importlib._bootstrap_external")}


@cache
def tvm() -> Any:
    """Return the tvm package, ready for MetaSchedule. Raises MissingExtra if it is not installed."""
    try:
        import tvm as package
    except ImportError as error:
        raise MissingExtra("apache-tvm", "kernels") from error
    intrinsics = types.ModuleType(_INTRINSICS)
    intrinsics.__path__ = [str(Path(package.__path__[0]) / "s_tir" / "tensor_intrin")]
    sys.modules[_INTRINSICS] = intrinsics
    importlib.import_module("tvm.s_tir").tensor_intrin = intrinsics  # type: ignore[attr-defined]
    register_intrinsics(platform.machine())
    for logger in ("tvm", "tvm.s_tir.meta_schedule"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    return package


def register_intrinsics(architecture: str) -> None:
    """Register the tensor intrinsics of an architecture."""
    inspect.modulesbyfile.update(_IMPORT_FRAMES)
    name = "arm_cpu" if architecture.startswith(("aarch64", "arm")) else "x86"
    importlib.import_module(f"{_INTRINSICS}.{name}")


@cache
def meta_schedule() -> Any:
    """Return TVM's MetaSchedule package."""
    tvm()
    return importlib.import_module("tvm.s_tir.meta_schedule")


def export_library(built: Any, file: str) -> None:
    """Write what TVM built as a shared library, or as an archive if the file name ends in .tar."""
    if file.endswith(".tar"):
        built.export_library(file, fcompile=__import__("tvm.support.tar", fromlist=["tar"]).tar)
    else:
        built.export_library(file)


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Discard what native code writes to stderr: TVM warns of pooling rules that it does not have and ignores them."""
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def check_linker() -> None:
    """Raise InputError if the machine has no C++ compiler, which links the libraries."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        raise InputError("no C++ compiler found to link kernels; install g++ (on Debian: apt install g++)")
