"""Restore after each call what it may have changed in its process: the next call starts as in a new one.

Covered are the current folder, the environment, the file mode mask, the import path, numpy's handling of floating-point
errors, and the global settings of torch. Libraries are never imported for it: what is not loaded has not been changed,
and a library that the call itself has loaded gets its initial settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A global setting of a library: how it is read and written, and what it is when the library is loaded."""

    library: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    initial: Callable[[Any], Any]

    def loaded(self) -> ModuleType | None:
        """Return the library, or None if it is not loaded."""
        return sys.modules.get(self.library)


def _flag(path: str, name: str, initial: object) -> Setting:
    """Return a setting that is an attribute of a part of torch."""

    def part(torch: Any) -> Any:
        for each in path.split("."):
            torch = getattr(torch, each)
        return torch

    return Setting(
        "torch",
        lambda torch: getattr(part(torch), name),
        lambda torch, value: setattr(part(torch), name, value),
        lambda _: initial,
    )


SETTINGS = (
    Setting(
        "numpy",
        lambda numpy: numpy.geterr(),
        lambda numpy, value: numpy.seterr(**value),
        lambda _: {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
    ),
    Setting(
        "torch",
        lambda torch: torch.get_default_dtype(),
        lambda torch, value: torch.set_default_dtype(value),
        lambda torch: torch.float32,
    ),
    Setting(
        "torch",
        lambda torch: torch.get_default_device(),
        lambda torch, value: torch.set_default_device(None if value.type == "cpu" else value),  # None costs nothing
        lambda torch: torch.device("cpu"),
    ),
    Setting(
        "torch",
        lambda torch: torch.is_grad_enabled(),
        lambda torch, value: torch.set_grad_enabled(value),
        lambda _: True,
    ),
    Setting(
        "torch",
        lambda torch: torch.is_anomaly_enabled(),
        lambda torch, value: torch.autograd.set_detect_anomaly(value),
        lambda _: False,
    ),
    Setting(
        "torch",
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        lambda _: (False, False),
    ),
    Setting(
        "torch",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, value: torch.set_float32_matmul_precision(value),
        lambda _: "highest",
    ),
    _flag("backends.cudnn", "benchmark", initial=False),
    _flag("backends.cudnn", "deterministic", initial=False),
)


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore at the end of the block what it has changed."""
    with suppress(OSError):  # the current folder was removed
        folder = os.getcwd()  # noqa: PTH109 - a string
    environment, import_path = dict(os.environ), list(sys.path)
    mask = os.umask(0o077)
    os.umask(mask)
    known = [(setting, setting.read(library)) for setting in SETTINGS if (library := setting.loaded()) is not None]
    try:
        yield
    finally:
        with suppress(OSError, NameError):
            os.chdir(folder)
        os.umask(mask)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        if sys.path != import_path:
            sys.path[:] = import_path
        _restore(dict(known))


def _restore(known: dict[Setting, Any]) -> None:
    for setting in SETTINGS:
        library = setting.loaded()
        if library is None:
            continue
        value = known[setting] if setting in known else setting.initial(library)
        if setting.read(library) != value:
            setting.write(library, value)
