"""The numbers of a study of impact as people read them: changes, chances and quantities."""

from __future__ import annotations

from onefold.impact_analysis import ConfidenceInterval, Effect
from onefold.vocabulary import quantities

BETTER, WORSE = "▴", "▾"
OPERATIONS = ("flops", "useful_flops")


def quantity(name: str, value: float, places: int | None = None) -> str:
    """A property in its unit."""
    if name not in OPERATIONS:
        return quantities.metric(name, value, places)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{quantities.number(float(f'{value / size:.3g}'))} {unit}"
    return quantities.number(value)


def change(share: float) -> str:
    """A relative difference: +12.3 %, −0.3 %, +4,480 %."""
    percent = abs(share) * 100
    if percent < 0.005:
        return "±0 %" if percent == 0 else f"{'+' if share > 0 else '−'}0.0 %"
    places = 0 if percent >= 99.95 else 1 if percent >= 0.095 else 2
    return f"{'+' if share > 0 else '−'}{percent:,.{places}f} %"


def multiple(value: float) -> str:
    """How many times the least."""
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}×"


def part(share: float) -> str:
    """A share of the whole."""
    return f"{share * 100:.0f} %"


def chance(p: float | None) -> str:
    """A p-value."""
    if p is None:
        return quantities.NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def signed(value: float | None) -> str:
    """A coefficient between -1 and 1."""
    return quantities.NOTHING if value is None else f"{value:.2f}".replace("-", "−")


def between(found: ConfidenceInterval) -> str:
    """A relative difference with its bounds."""
    return f"{change(found.value)} ({part(found.level)} interval {change(found.low)} to {change(found.high)})"


def spoken(effect: Effect) -> str:
    """All that is known about an effect, line by line."""
    test = effect.compared
    lines = [
        f"U {quantities.NOTHING if test.u is None else quantities.number(test.u)}, n {test.n} and {test.n_baseline}",
        f"p {chance(test.p)}{f' ({test.method})' if test.method else ''}, corrected p {chance(effect.p_adjusted)}",
        f"Cliff's delta {signed(test.delta)}{f' ({test.magnitude})' if test.magnitude else ''}",
        f"medians differ by {between(effect.medians)}",
    ]
    return "\n".join([*lines, *filter(None, (test.note, effect.medians.note))])
