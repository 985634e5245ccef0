"""Numbers and quantities as people read them. The text and the page write every number through this module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from onefold.vocabulary.knobs import StepWindow
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Energy, Grant, Value
from onefold.vocabulary.requirement import Bound

NOTHING = "—"

SOURCES = {
    "rapl": "measured by the processor's energy counters (RAPL)",
    "nvml": "measured by the GPU (NVML)",
    "rapl+nvml": "measured by the processor's energy counters (RAPL) and by the GPU (NVML)",
    "modelled": "modelled: an estimate, not a measurement",
    "unavailable": "not available on this machine",
    "nothing": "nothing has been measured yet",
}


def number(value: float) -> str:
    """Four significant digits, whole numbers in full, very large and very small ones with an exponent."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return _exponent(value)
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _exponent(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def decimals(values: Iterable[float]) -> int | None:
    """How many decimals make a column of these numbers line up; None when they are better written one by one."""
    known = [float(value) for value in values if math.isfinite(value)]
    sizes = [abs(value) for value in known]
    largest = max(sizes, default=0.0)
    if all(size.is_integer() for size in sizes) or not 1e-3 <= largest < 1e5:
        return None
    smallest = min((size for size in sizes if size > 0), default=largest)
    if smallest < largest / 2e3:
        return None
    # Four digits of the largest, three of the smallest (among losses that is the best), and enough to tell them apart.
    spread = max(known) - min(known) or largest
    digits = (math.log10(largest) - 1, math.log10(smallest), math.log10(spread))
    return min(max(0, 2 - math.floor(min(digits))), 7)


def metric(name: str, value: float, places: int | None = None) -> str:
    """A metric's value, in the unit that its name carries, or with this many decimals."""
    name = name.partition("@")[0]  # without the device
    for suffix, unit in (("_per_s", rate), ("_s", duration), ("_j", joules), ("_bytes", size)):
        if name.endswith(suffix):
            return unit(value)
    return number(value) if places is None or not math.isfinite(value) else f"{value:.{places}f}"


def setting(value: Value) -> str:
    """A parameter's value."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return number(value) if abs(value) < 1e4 else f"{value:.6g}"
    return str(value)


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.1:
        return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{number(float(f'{seconds * 1e6:.3g}'))} µs"
    if abs(seconds) < 89.95:
        return f"{seconds:.2f} s" if abs(seconds) < 9.995 else f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    if seconds < 48 * 3600:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest:02d} min"
    return f"{number(seconds / 86400)} days"


def step(window: StepWindow) -> str:
    """What a step of a window took, in time and, where it is known, in energy."""
    told = duration(window.step_s)
    known = window.step_j is not None and window.source != "unavailable"
    return f"{told}, {energy(Energy(window.step_j, window.source))}" if known else told


def rate(per_second: float) -> str:
    """So many per second."""
    return f"{number(per_second)}/s"


def joules(value: float) -> str:
    """Joules in the unit that suits them."""
    return _scaled(value, 1000.0, ("mJ", "J", "kJ", "MJ", "GJ"), start=1)


def size(value: float) -> str:
    """Bytes in the unit that suits them."""
    return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"), start=0)


def _scaled(value: float, step: float, units: tuple[str, ...], start: int) -> str:
    if not math.isfinite(value):
        return NOTHING
    place = start
    if value and abs(value) < 1 and place > 0:
        value, place = value * step, place - 1
    while abs(value) >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    return f"{number(float(f'{value:.3g}')) if abs(value) < step else number(value)} {units[place]}"


def energy(spent: Energy) -> str:
    """An energy; "≈" marks an estimate. Show `energy_source` near it."""
    if spent.joules is None or spent.source in ("nothing", "unavailable"):
        return NOTHING
    return joules(spent.joules) if spent.measured else f"≈ {joules(spent.joules)}"


def energy_source(spent: Energy) -> str:
    """Where an energy comes from; an estimate says that it is one."""
    if spent.joules is None:
        return SOURCES["unavailable"]
    return SOURCES.get(spent.source, f"measured by {spent.source}")


def grant(granted: Grant) -> str:
    """What a rung may spend."""
    limit = duration(granted.time_s) if granted.time_s is not None else count(granted.epochs, "epoch")
    return limit if granted.data >= 1 else f"{limit}, {share(granted.data)} data"


def moment(iso: str) -> str:
    """A moment as ISO 8601 writes it, to the second and without its T and Z."""
    day, _, time = iso.partition("T")
    if not time:
        return iso
    clock, zone = re.fullmatch(r"([^Z+-]*)(.*)", time, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{day} {clock.partition('.')[0]} {'UTC' if zone in ('Z', '+00:00') else zone}".strip()


def share(part: float) -> str:
    """A share as a percentage."""
    return f"{part * 100:.2g} %" if part < 0.995 else "100 %"


def count(how_many: int, noun: str) -> str:
    """ "1 trial", "2 trials"."""
    return f"{how_many:,} {noun}" if how_many == 1 else f"{how_many:,} {noun}s"


def settings(values: Mapping[str, Value]) -> str:
    """A configuration on one line."""
    return " ".join(f"{name}={setting(value)}" for name, value in values.items())


def goals(objective: Objective) -> str:
    """An objective in words."""
    wanted = ", ".join(map(str, objective.goals))
    kept = " and ".join(
        f"{name} {'at least' if bound.at_least else 'at most'} {_limit(name, bound)}"
        for name, bound in objective.require.items()
    )
    return f"{wanted}, with {kept}" if kept else wanted


def _limit(name: str, bound: Bound) -> str:
    limit = metric(name, bound.limit) if bound.limit is not None else ""
    if bound.from_best is None:
        return limit
    said = f"the best {'less' if bound.at_least else 'and'} {abs(bound.from_best):g}"
    return f"{said} ({limit})" if limit else said
