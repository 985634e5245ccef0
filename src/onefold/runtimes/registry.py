"""The runtimes that Onefold knows, and whether they are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from onefold.runtimes.executorch import ExecutorchRuntime
from onefold.runtimes.litert import LitertRuntime
from onefold.runtimes.ncnn import NcnnRuntime
from onefold.runtimes.onnxruntime import OnnxRuntime
from onefold.runtimes.openvino import OpenvinoRuntime
from onefold.runtimes.pytorch import PytorchRuntime
from onefold.runtimes.runtime import Runtime
from onefold.vocabulary.errors import InputError, MissingExtra, unknown
from onefold.vocabulary.serving import ONNXRUNTIME

ALL = "all"
RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        OnnxRuntime(), OpenvinoRuntime(), NcnnRuntime(), LitertRuntime(), ExecutorchRuntime(), PytorchRuntime(),
    )
}  # fmt: skip


def find_runtime(name: str) -> Runtime:
    """Return the runtime of this name. Raises InputError if there is none."""
    if name not in RUNTIMES:
        raise InputError(unknown("runtime", name, [ALL, *RUNTIMES]))
    return RUNTIMES[name]


def selected_runtimes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the runtimes to compare: the given ones, or all for `all`; ONNX Runtime, the reference, is the first.

    Raises:
        InputError: A name is unknown.
        MissingExtra: A runtime that is named is not installed.
    """
    if ALL in names:
        return tuple(RUNTIMES)
    for name in names:
        require_installed(find_runtime(name))
    return tuple(dict.fromkeys((ONNXRUNTIME, *names)))


def missing_package(runtime: Runtime) -> str:
    """Return the first package of a runtime that is not installed; empty if it has all."""
    for package in runtime.packages:
        try:
            version(package)
        except PackageNotFoundError:
            return package
    return ""


def require_installed(runtime: Runtime) -> None:
    """Raise MissingExtra unless a runtime is installed."""
    package = missing_package(runtime)
    if package:
        raise MissingExtra(package, runtime.extra)


def version_of(name: str) -> str:
    """Return the name and the version of an installed runtime."""
    return f"{name} {version(find_runtime(name).packages[0])}"
