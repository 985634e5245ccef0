"""The numbers of a study of impact as people read them: changes, chances and quantities."""

from __future__ import annotations

from onefold.impact_analysis import ConfidenceInterval, Effect
from onefold.vocabulary import quantities

BETTER, WORSE = "▴", "▾"


def change(share: float) -> str:
    """A relative difference: +12.3 %, −0.3 %, +4,480 %."""
    percent = abs(share) * 100
    if percent < 0.005:
        return "±0 %" if percent == 0 else f"{'+' if share > 0 else '−'}0.0 %"
    places = 0 if percent >= 99.95 else 1 if percent >= 0.095 else 2
    return f"{'+' if share > 0 else '−'}{percent:,.{places}f} %"


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
