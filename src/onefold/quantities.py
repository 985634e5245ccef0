"""Sizes, times and energies as a person writes them."""

from __future__ import annotations

import re

from onefold.errors import InputError

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
ENERGIES = {"": 1.0, "J": 1.0, "KJ": 1e3, "MJ": 1e6, "WH": 3600.0, "KWH": 3.6e6}


def bytes_of(text: str | float) -> int:
    """Bytes out of "500MB", "2 GiB" or 1000000."""
    if not isinstance(text, str):
        return int(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text)
    if match and match[2].upper() in SIZES:
        try:
            return int(float(match[1]) * SIZES[match[2].upper()])
        except ValueError:
            pass
    raise InputError(f"a size reads like 500MB or 2GB, but got {text!r}")


def seconds_of(text: str | float) -> float:
    """Seconds out of "10m", "90s", "1h" or 600."""
    if not isinstance(text, str):
        return float(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text)
    if match and match[2].lower() in TIMES:
        try:
            return float(match[1]) * TIMES[match[2].lower()]
        except ValueError:
            pass
    raise InputError(f"a time reads like 10m, 90s or 1h, but got {text!r}")


def joules_of(text: str | float) -> float:
    """Joules out of "50kJ", "0.2kWh" or 50000."""
    if not isinstance(text, str):
        return float(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text)
    if match and match[2].upper() in ENERGIES:
        try:
            return float(match[1]) * ENERGIES[match[2].upper()]
        except ValueError:
            pass
    raise InputError(f"an energy reads like 50kJ, 2MJ or 0.5kWh, but got {text!r}")


def price_of(text: str | float) -> float:
    """The price of a kilowatt-hour out of "0.30/kWh" or 0.3."""
    if not isinstance(text, str):
        return float(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*(/\s*kWh)?\s*", text, re.IGNORECASE)
    if match:
        try:
            return float(match[1])
        except ValueError:
            pass
    raise InputError(f"a price reads like 0.30/kWh, but got {text!r}")
