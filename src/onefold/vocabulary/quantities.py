"""Quantities as people type and read them: parse "500MB" or "10m", format bytes, seconds, joules and plain numbers.

Every number that Onefold prints goes through this module, so that a duration or a size reads the same everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Real

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Value

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
TIMES = {"": 1.0, "US": 1e-6, "MS": 1e-3, "S": 1.0, "SEC": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0, "D": 86400.0}
ENERGIES = {"": 1.0, "J": 1.0, "KJ": 1e3, "MJ": 1e6, "WH": 3600.0, "KWH": 3.6e6}
PRICES = {"": 1.0, "/KWH": 1.0}
SHARES = {"": 1.0, "%": 0.01}

MISSING = "—"  # printed for an unknown, infinite or NaN value


def parse_bytes(text: str | float) -> int:
    """Return the bytes in "500MB", "2 GiB" or 1000000. Raises InputError for anything else."""
    return int(_parse(text, SIZES, "a size", "500MB or 2GB"))


def parse_seconds(text: str | float) -> float:
    """Return the seconds in "10m", "90s", "2ms" or 600. Raises InputError for anything else."""
    return _parse(text, TIMES, "a duration", "2ms, 90s or 10m")


def parse_joules(text: str | float) -> float:
    """Return the joules in "50kJ", "0.2kWh" or 50000. Raises InputError for anything else."""
    return _parse(text, ENERGIES, "an energy", "50kJ, 2MJ or 0.5kWh")


def parse_price(text: str | float) -> float:
    """Return the price of a kilowatt-hour in "0.30/kWh" or 0.3. Raises InputError for anything else."""
    return _parse(text, PRICES, "a price", "0.30/kWh")


def parse_share(text: str | float) -> float:
    """Return the share in "10%", "10 %" or 0.1. Raises InputError for anything else, and for text such as "10"."""
    share = _parse(text, SHARES, "a share", "10% or 0.1")
    if isinstance(text, str) and share > 1 and "%" not in text:
        raise InputError(f"expected a share such as 10% or 0.1, got {text!r}; write {share:g}% or {share:.0%}")
    return share


def _parse(text: str | float, units: Mapping[str, float], quantity: str, examples: str) -> float:
    """Parse a number followed by a unit, ignoring case and spaces."""
    if isinstance(text, Real) and not isinstance(text, bool):
        return float(text)
    match = re.fullmatch(r"\s*([\d.]+)\s*(/?\s*[A-Za-z]*|%)\s*", text) if isinstance(text, str) else None
    unit = "".join(match[2].split()).upper() if match else ""
    if match and unit in units:
        try:
            return float(match[1]) * units[unit]
        except ValueError:
            pass
    raise InputError(f"expected {quantity} such as {examples}, got {text!r}")


def number(value: float | None) -> str:
    """Format a number with four significant digits, integers in full and extreme values with an exponent."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return _scientific(value)
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def rounded(value: float, digits: int) -> str:
    """Format a number with this many significant digits."""
    return number(float(f"{value:.{digits}g}"))


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def decimals(values: Iterable[float]) -> int | None:
    """Return the number of decimals that aligns a column of these values; None if each is better formatted alone."""
    finite = [float(value) for value in values if math.isfinite(value)]
    sizes = [abs(value) for value in finite]
    largest = max(sizes, default=0.0)
    if all(size.is_integer() for size in sizes) or not 1e-3 <= largest < 1e5:
        return None
    smallest = min((size for size in sizes if size > 0), default=largest)
    if smallest < largest / 2e3:
        return None
    # Four digits of the largest, three of the smallest (the best of a column of losses), and enough to tell them apart.
    spread = max(finite) - min(finite) or largest
    digits = (math.log10(largest) - 1, math.log10(smallest), math.log10(spread))
    return min(max(0, 2 - math.floor(min(digits))), 7)


def metric(name: str, value: float | None, places: int | None = None) -> str:
    """Format the value of a metric in the unit of its name's suffix; a metric without a unit with `places` decimals."""
    if value is None:
        return MISSING
    name = name.partition("@")[0]  # without the device
    for suffix, unit in (("_per_s", rate), ("_s", duration), ("_j", joules), ("_bytes", size), ("flops", operations)):
        if name.endswith(suffix) and name.isidentifier():  # an expression has no unit
            return unit(value)
    return number(value) if places is None or not math.isfinite(value) else f"{value:.{places}f}"


def setting(value: Value) -> str:
    """Format the value of a parameter."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return number(value) if abs(value) < 1e4 else f"{value:.6g}"
    return str(value)


def settings(values: Mapping[str, Value]) -> str:
    """Format a configuration on one line: "lr=0.01 width=16"."""
    return " ".join(f"{name}={setting(value)}" for name, value in values.items())


def duration(seconds: float | None) -> str:
    """Format seconds: "2.1 µs", "42.1 ms", "0.66 s", "66 min 40 s", "3 h 20 min", "2.5 days"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.1:
        return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{rounded(seconds * 1e6, 3)} µs"
    if abs(seconds) < 89.95:
        return f"{seconds:.2f} s" if abs(seconds) < 9.995 else f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    if seconds < 48 * 3600:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest:02d} min"
    return f"{number(seconds / 86400)} days"


def remaining(seconds: float) -> str:
    """Format an estimate of the time that is left: "less than a second", "about 12 s", "about 3 min 20 s"."""
    if seconds < 1:
        return "less than a second"
    return f"about {round(seconds)} s" if seconds < 89.5 else f"about {duration(seconds)}"


def rate(per_second: float) -> str:
    """Format a rate: "1,234/s"."""
    return f"{number(per_second)}/s"


def joules(value: float | None) -> str:
    """Format joules: "500 mJ", "12.3 kJ"."""
    return _scaled(value, 1000.0, ("mJ", "J", "kJ", "MJ", "GJ"), start=1)


def size(value: float | None) -> str:
    """Format bytes in binary units: "796 KiB", "1.15 MiB"."""
    return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"), start=0)


def _scaled(value: float | None, step: float, units: tuple[str, ...], start: int) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    index = start
    if value and abs(value) < 1 and index > 0:
        value, index = value * step, index - 1
    while abs(value) >= step and index < len(units) - 1:
        value, index = value / step, index + 1
    return f"{rounded(value, 3) if abs(value) < step else number(value)} {units[index]}"


def share(fraction: float | None) -> str:
    """Format a fraction as a percentage: "33 %", "0.67 %", "120 %"."""
    if fraction is None:
        return MISSING
    return f"{fraction * 100:.2g} %" if fraction < 0.995 else f"{fraction * 100:,.0f} %"


def factor(value: float) -> str:
    """Format a ratio: "1.25×", "12.3×", "120×"."""
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}×"


def operations(value: float) -> str:
    """Format a number of operations: "1.8 G"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale * 0.9995:
            return f"{rounded(value / scale, 3)} {prefix}"
    return number(value)


def count(quantity: int, noun: str) -> str:
    """Format a count with its noun: "1 trial", "2 trials"."""
    return f"{quantity:,} {noun}" if quantity == 1 else f"{quantity:,} {noun}s"


def timestamp(iso: str) -> str:
    """Format an ISO 8601 timestamp to the second: "2026-09-01 08:30:12 UTC". Other text is returned unchanged."""
    day, _, time = iso.partition("T")
    if not time:
        return iso
    clock, zone = re.fullmatch(r"([^Z+-]*)(.*)", time, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{day} {clock.partition('.')[0]} {'UTC' if zone in ('Z', '+00:00') else zone}".strip()
