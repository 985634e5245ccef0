"""Format relative differences, p-values and effects of an impact analysis."""

from __future__ import annotations

from onefold.impact_analysis import ConfidenceInterval, Effect
from onefold.vocabulary import quantities

BETTER, WORSE = "▴", "▾"


def change(share: float) -> str:
    """Format a relative difference: +12.3 %, −0.3 %, +4,480 %."""
    percent = abs(share) * 100
    if percent < 0.005:
        return "±0 %" if percent == 0 else f"{'+' if share > 0 else '−'}0.0 %"
    places = 0 if percent >= 99.95 else 1 if percent >= 0.095 else 2
    return f"{'+' if share > 0 else '−'}{percent:,.{places}f} %"


def percent(share: float) -> str:
    """Format a share in percent."""
    return f"{share * 100:.0f} %"


def rsd(share: float) -> str:
    """Format a relative standard deviation."""
    return f"{share * 100:.1f} %"


def p_value(p: float | None) -> str:
    """Format a p-value."""
    if p is None:
        return quantities.MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"


def coefficient(value: float | None) -> str:
    """Format a coefficient between -1 and 1."""
    return quantities.MISSING if value is None else f"{value:.2f}".replace("-", "−")


def interval_text(interval: ConfidenceInterval) -> str:
    """Format a relative difference with its confidence interval."""
    bounds = f"{change(interval.low)} to {change(interval.high)}"
    return f"{change(interval.value)} ({percent(interval.level)} interval {bounds})"


def effect_details(effect: Effect) -> str:
    """Return the test, the effect size and the interval of an effect, one per line."""
    test, paired, spread = effect.compared, effect.paired, effect.spread
    lines = [
        f"{paired.n} pairs, of which {paired.differing} differ: W {quantities.number(paired.w)}",
        f"p {p_value(paired.p)}, adjusted p {p_value(effect.paired_p_adjusted)}",
        f"paired Cliff's delta {coefficient(paired.delta)}{f' ({paired.magnitude})' if paired.magnitude else ''}",
        f"pairs differ by {interval_text(effect.change)}" if effect.change is not None else "",
        f"trend: delta {coefficient(effect.trend.delta)}, p {p_value(effect.trend.p)}, adjusted p "
        f"{p_value(effect.trend_p_adjusted)}"
        if effect.trend is not None
        else "",
        f"unpaired: U {quantities.number(test.u)}, n {test.n} and {test.n_baseline}, p {p_value(test.p)}"
        f"{f' ({test.method})' if test.method else ''}, adjusted p {p_value(effect.p_adjusted)}",
        f"Cliff's delta {coefficient(test.delta)}{f' ({test.magnitude})' if test.magnitude else ''}",
        f"medians differ by {interval_text(effect.medians)}",
        f"spread: p {p_value(spread.p)}, adjusted p {p_value(effect.spread_p_adjusted)}",
        paired.note,
        test.note,
        effect.medians.note,
    ]
    return "\n".join(filter(None, lines))
