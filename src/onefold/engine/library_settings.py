"""The global settings of libraries that a call may change: those of torch, numpy and the standard library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

DENORMAL = 1e-40  # the least normal number of float32 is 1.2e-38


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


def _attribute(library: str, name: str, initial: object) -> Setting:
    """Return a setting that is an attribute of a module."""
    return Setting(
        library,
        lambda module: getattr(module, name),
        lambda module, value: setattr(module, name, value),
        lambda _: initial,
    )


def _autocast(device: str) -> Setting:
    """Return whether operations of a kind of device change their precision by themselves, and to which."""
    return Setting(
        "torch",
        lambda torch: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        lambda torch, value: (
            torch.set_autocast_enabled(device, value[0]),
            torch.set_autocast_dtype(device, value[1]),
        ),
        lambda torch: (False, torch.bfloat16 if device == "cpu" else torch.float16),
    )


def _hooks(torch: Any) -> dict[str, dict[int, Any]]:
    """Return the hooks of all modules at once, by kind."""
    kinds = vars(torch.nn.modules.module).items()
    return {name: dict(hooks) for name, hooks in kinds if name.startswith("_global_") and isinstance(hooks, dict)}


def _set_hooks(torch: Any, value: dict[str, dict[int, Any]]) -> None:
    for name in _hooks(torch):
        hooks = getattr(torch.nn.modules.module, name)
        hooks.clear()
        hooks.update(value.get(name, {}))


def _flushes_denormals(torch: Any) -> bool:
    return float(torch.full((1,), DENORMAL, dtype=torch.float32, device="cpu") * 1) == 0.0


def _alarm(signal: Any) -> tuple[Any, bool]:
    """Return the handler of SIGALRM and whether it is expected: the time limit of a call must not end the next one."""
    return signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_alarm(signal: Any, value: tuple[Any, bool]) -> None:
    handler, is_expected = value
    if not is_expected:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if handler is not None:  # None: not set from Python
        signal.signal(signal.SIGALRM, handler)


STANDARD_LIBRARY = (
    Setting(
        "sys", lambda sys: sys.getrecursionlimit(), lambda sys, value: sys.setrecursionlimit(value), lambda _: 1000
    ),
    _attribute("sys", "stdout", sys.__stdout__),
    _attribute("sys", "stderr", sys.__stderr__),
    Setting("gc", lambda gc: gc.isenabled(), lambda gc, value: gc.enable() if value else gc.disable(), lambda _: True),
    Setting(
        "socket",
        lambda socket: socket.getdefaulttimeout(),
        lambda socket, value: socket.setdefaulttimeout(value),
        lambda _: None,
    ),
    Setting(
        "logging",
        lambda logging: logging.root.manager.disable,
        lambda logging, value: logging.disable(value),
        lambda _: 0,
    ),
    _attribute("tempfile", "tempdir", None),
    Setting("signal", _alarm, _set_alarm, lambda signal: (signal.SIG_DFL, False)),
    Setting(
        "signal",
        lambda signal: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        lambda signal, value: signal.pthread_sigmask(signal.SIG_SETMASK, value),
        lambda _: set(),
    ),
)
SETTINGS = (
    *STANDARD_LIBRARY,
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
    Setting(
        "torch",
        _flushes_denormals,
        lambda torch, value: torch.set_flush_denormal(value),
        lambda _: False,
    ),
    Setting("torch", _hooks, _set_hooks, lambda _: {}),
    _autocast("cpu"),
    _autocast("cuda"),
    _flag("backends.mkldnn", "enabled", initial=True),
    _flag("backends.cudnn", "enabled", initial=True),
    _flag("backends.cudnn", "benchmark", initial=False),
    _flag("backends.cudnn", "deterministic", initial=False),
)
