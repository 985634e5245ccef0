"""Where models are served: a catalogue of devices, this machine, and this machine in a device's place."""

from onefold.device.device import Device
from onefold.device.effort import BRIEF, CAREFUL, RESTED, SOUND, Effort
from onefold.device.session import EmulatedSession, HostSession, Session, open_session, runtime

__all__ = [
    "BRIEF",
    "CAREFUL",
    "RESTED",
    "SOUND",
    "Device",
    "Effort",
    "EmulatedSession",
    "HostSession",
    "Session",
    "open_session",
    "runtime",
]
