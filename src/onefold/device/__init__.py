"""Devices that models are served on: the catalog, this machine, and this machine emulating another device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.device.device import Device
    from onefold.device.emulated_session import EmulatedSession
    from onefold.device.host_session import HostSession
    from onefold.device.session import Session, open_session, runtime
    from onefold.device.timing_effort import AFTER_IDLE, PRECISE, QUICK, STANDARD, TimingEffort

__all__ = [
    "AFTER_IDLE",
    "PRECISE",
    "QUICK",
    "STANDARD",
    "Device",
    "EmulatedSession",
    "HostSession",
    "Session",
    "TimingEffort",
    "open_session",
    "runtime",
]

# Imported on first use: sessions import onnxruntime, which commands that only name a device do not need.
_MODULES = {
    "Device": "device",
    "EmulatedSession": "emulated_session",
    "HostSession": "host_session",
    **dict.fromkeys(("Session", "open_session", "runtime"), "session"),
    **dict.fromkeys(("AFTER_IDLE", "PRECISE", "QUICK", "STANDARD", "TimingEffort"), "timing_effort"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
