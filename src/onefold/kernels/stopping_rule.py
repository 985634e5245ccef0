"""Decides when to stop tuning.

The rate rule follows the text of the Trimmer paper, whose printed formula adds where the text compares: the rate is the
change of the model's latency per second of a round, and tuning stops when the rate has changed by -gain_drop or less
relative to the previous round. The sign is flipped if both rounds made the model slower, and if the last one made it
faster after one that made it slower. After a round without any change, whose rate is 0, the next round counts as a full
drop unless it makes the model faster. So does a round that makes the model slower at no lower rate than the one before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from onefold.vocabulary.kernels import CompileBudget, CompileCost, TuningRound
from onefold.vocabulary.quantities import count, duration, joules, rounded

NO_COST = CompileCost()
CONSECUTIVE_ROUNDS = 2  # that must agree: the latency of a single one is noisy


def relative_change(before: float, now: float) -> float:
    """Return the change of the rate relative to `before`; rates are seconds of latency per second of tuning."""
    if before == 0:
        return -1.0 if now >= 0 else 1.0
    if now >= before > 0:
        return -max(1.0, (now - before) / before)
    both_slower, faster_now = before > 0 and now > 0, before > 0 and now < 0
    sign = -1.0 if both_slower or faster_now else 1.0
    return sign * (now - before) / before


def latency_rates(rounds: Sequence[TuningRound]) -> list[float]:
    """Return the change of latency per second of each round but the first."""
    return [
        (now.latency_s - before.latency_s) / max(1e-9, now.ended_s - before.ended_s) for before, now in pairwise(rounds)
    ]


def has_diminishing_gain(
    rounds: Sequence[TuningRound], gain_drop: float, consecutive: int = CONSECUTIVE_ROUNDS
) -> bool:
    """Return whether the gain per second dropped by at least `gain_drop` in each of the last `consecutive` rounds."""
    changes = [relative_change(before, now) for before, now in pairwise(latency_rates(rounds))]
    return len(changes) >= consecutive and all(change <= -gain_drop for change in changes[-consecutive:])


def exhausted_limit(
    budget: CompileBudget, cost: CompileCost, elapsed_s: float, candidates: int, reserve: CompileCost = NO_COST
) -> str:
    """Return which limit of the budget is reached, as a sentence; empty if none is.

    A limit is also reached if the rest does not pay for `reserve`, the cost of measuring the whole models once more.
    """
    spent_j = cost.energy.joules
    reserve_j = reserve.energy.joules or 0.0
    if budget.minutes is not None and elapsed_s + reserve.time_s >= 60 * budget.minutes:
        return f"the time limit is reached ({duration(elapsed_s)})"
    if budget.candidates is not None and candidates >= budget.candidates:
        return f"{count(candidates, 'candidate')} measured"
    if spent_j is None:
        return ""
    if budget.energy_j is not None and spent_j + reserve_j >= budget.energy_j:
        return f"the energy limit is reached ({joules(spent_j)}, {cost.source})"
    if budget.money is not None and budget.money_for(spent_j + reserve_j) >= budget.money:
        return (
            f"the money limit is reached ({rounded(budget.money_for(spent_j), 3)} for {joules(spent_j)}, {cost.source})"
        )
    return ""


def share_of_rest(
    budget: CompileBudget, cost: CompileCost, elapsed_s: float, more: CompileCost, reserve: CompileCost = NO_COST
) -> float:
    """Return which share `more` is of what the budget has left after `reserve`; infinite if nothing is left."""
    uses: list[tuple[float, float]] = []  # and what is left
    if budget.minutes is not None:
        uses.append((more.time_s, 60 * budget.minutes - elapsed_s - reserve.time_s))
    spent_j, more_j = cost.energy.joules, more.energy.joules or 0.0
    if spent_j is not None:
        reserved_j = spent_j + (reserve.energy.joules or 0.0)
        if budget.energy_j is not None:
            uses.append((more_j, budget.energy_j - reserved_j))
        if budget.money is not None:
            uses.append((budget.money_for(more_j), budget.money - budget.money_for(reserved_j)))
    return max((used / left if left > 0 else math.inf for used, left in uses), default=0.0)


def affordable_candidates(
    budget: CompileBudget, cost: CompileCost, elapsed_s: float, candidates: int, reserve: CompileCost = NO_COST
) -> float:
    """Return how many candidates may be measured before the budget is looked at again; 0 if it is exhausted.

    It is half of those that the rest pays for at the average cost so far, and at least one. So the costs may exceed
    a limit by those of a single candidate.
    """
    if exhausted_limit(budget, cost, elapsed_s, candidates, reserve):
        return 0
    tuning = cost - CompileCost(
        {"whole": cost.seconds.get("whole", 0.0)}, {"whole": cost.joules.get("whole", 0.0)}, cost.source
    )
    spent_j = cost.energy.joules
    left: list[float] = [] if budget.candidates is None else [2.0 * (budget.candidates - candidates)]
    rests: list[tuple[float, float]] = []  # what is left, and what the candidates have cost
    if budget.minutes is not None:
        rests.append((60 * budget.minutes - elapsed_s - reserve.time_s, tuning.time_s))
    if spent_j is not None:
        reserved_j, tuning_j = spent_j + (reserve.energy.joules or 0.0), tuning.energy.joules or 0.0
        if budget.energy_j is not None:
            rests.append((budget.energy_j - reserved_j, tuning_j))
        if budget.money is not None:
            rests.append((budget.money - budget.money_for(reserved_j), budget.money_for(tuning_j)))
    left += [rest * candidates / spent if candidates and spent > 0 else 1.0 for rest, spent in rests]
    return max(1.0, min(left, default=math.inf) / 2)
