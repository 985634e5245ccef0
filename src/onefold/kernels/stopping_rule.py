"""When a survey has done enough.

The rate rule follows the text of the publication, whose printed formula adds where the text compares: x is the change
of the model's latency over the time that a round took, and a survey ends when x has changed by no more than `falls`
of what it was, that is when the gain per second has fallen by a quarter with the usual -0.25. Where both rounds made
the model slower, and where the last one made it faster after one that did not, the sign is turned. A round that gains
nothing leaves no rate to compare the next one with: it counts as fallen if it gains nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from onefold.vocabulary.kernels import CompileBudget, CompileCost, TuningRound

ROUNDS = 2  # in a row that must say so: one may be noise


def change(before: float, now: float) -> float:
    """How the rate has changed, as a share of what it was; rates are seconds of latency per second of tuning."""
    if before == 0:
        return -1.0 if now >= 0 else 1.0
    both_slower, faster_now = before > 0 and now > 0, before > 0 and now < 0
    sign = -1.0 if both_slower or faster_now else 1.0
    return sign * (now - before) / before


def rates(rounds: Sequence[TuningRound]) -> list[float]:
    """The change of latency over the time of each round but the first."""
    return [(one.latency_s - last.latency_s) / max(1e-9, one.ended_s - last.ended_s) for last, one in pairwise(rounds)]


def no_longer_pays(rounds: Sequence[TuningRound], falls: float, in_a_row: int = ROUNDS) -> bool:
    """Whether the last few rounds in a row gained less and less."""
    found = rates(rounds)
    changes = [change(before, now) for before, now in pairwise(found)]
    return len(changes) >= in_a_row and all(one <= falls for one in changes[-in_a_row:])


def used_up(effort: CompileBudget, spent: CompileCost, elapsed_s: float, candidates: int) -> str:
    """What is used up, in words; empty while nothing is."""
    joules = spent.energy.joules
    if effort.minutes is not None and elapsed_s >= 60 * effort.minutes:
        return f"the time is used up ({elapsed_s:.0f} s)"
    if effort.candidates is not None and candidates >= effort.candidates:
        return f"{candidates} candidates were measured"
    if joules is not None and effort.joules is not None and joules >= effort.joules:
        return f"the energy is used up ({joules:,.0f} J, {spent.source})"
    if joules is not None and effort.money is not None and effort.money_for(joules) >= effort.money:
        return f"the money is used up ({effort.money_for(joules):.3g} for {joules:,.0f} J, {spent.source})"
    return ""
