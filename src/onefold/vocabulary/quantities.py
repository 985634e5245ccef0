"""Sizes, times and energies as a person writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onefold.vocabulary.errors import InputError

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
TIMES = {"": 1.0, "US": 1e-6, "MS": 1e-3, "S": 1.0, "SEC": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0}
ENERGIES = {"": 1.0, "J": 1.0, "KJ": 1e3, "MJ": 1e6, "WH": 3600.0, "KWH": 3.6e6}
PRICES = {"": 1.0, "/KWH": 1.0}


def bytes_of(text: str | float) -> int:
    """Bytes out of "500MB", "2 GiB" or 1000000."""
    return int(_amount(text, SIZES, "a size reads like 500MB or 2GB"))


def seconds_of(text: str | float) -> float:
    """Seconds out of "10m", "90s", "2ms" or 600."""
    return _amount(text, TIMES, "a time reads like 2ms, 90s or 10m")


def joules_of(text: str | float) -> float:
    """Joules out of "50kJ", "0.2kWh" or 50000."""
    return _amount(text, ENERGIES, "an energy reads like 50kJ, 2MJ or 0.5kWh")


def price_of(text: str | float) -> float:
    """The price of a kilowatt-hour out of "0.30/kWh" or 0.3."""
    return _amount(text, PRICES, "a price reads like 0.30/kWh")


def _amount(text: str | float, units: Mapping[str, float], rule: str) -> float:
    """A number and its unit, large and small letters alike; InputError tells the rule."""
    if not isinstance(text, str):
        return float(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*(/?\s*[A-Za-z]*)\s*", text)
    unit = "".join(match[2].split()).upper() if match else ""
    if match and unit in units:
        try:
            return float(match[1]) * units[unit]
        except ValueError:
            pass
    raise InputError(f"{rule}, but got {text!r}")
