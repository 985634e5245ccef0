"""Devices that models are served on: the catalog, this machine, and this machine emulating another device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.agent.timing_effort import AFTER_IDLE, PRECISE, QUICK, STANDARD, TimingEffort
    from onefold.device.device import Device
    from onefold.device.emulated_session import EmulatedSession
    from onefold.device.host_session import HostSession
    from onefold.device.session import Session, is_quiet, open_session, quiet_host, runtime

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
    "is_quiet",
    "open_session",
    "quiet_host",
    "runtime",
]

# Imported on first use: sessions import onnxruntime, which commands that only name a device do not need.
_MODULES = {
    "Device": "onefold.device.device",
    "EmulatedSession": "onefold.device.emulated_session",
    "HostSession": "onefold.device.host_session",
    **dict.fromkeys(("Session", "is_quiet", "open_session", "quiet_host", "runtime"), "onefold.device.session"),
    **dict.fromkeys(("AFTER_IDLE", "PRECISE", "QUICK", "STANDARD", "TimingEffort"), "onefold.agent.timing_effort"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
