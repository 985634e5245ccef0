"""Devices that models are served on: the catalog, this machine, and this machine emulating another device."""

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
