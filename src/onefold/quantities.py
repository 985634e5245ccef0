"""Sizes and times as a person writes them."""

from __future__ import annotations

import re

from onefold.errors import InputError

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
TIMES = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


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
