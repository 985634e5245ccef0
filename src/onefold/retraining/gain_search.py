"""The gain search: which plan goes on.

Each plan is tried for a micro-window, whose work is kept. P = alpha * gain + beta / time judges it, both as shares of
the best plan's; beta is 1 - alpha. Gains fall as a model gets better, whoever trains it: a gain counts relative to
what was usual when it was made. The best plan goes on, is judged again, and gives way when another is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onefold.vocabulary.retraining import DEFAULT_ALPHA, PlanEstimate, RetrainingPlan

FALLS = 0.6  # of what is usual is left after a micro-window, at least: what gains still less is the plan's own fault
LATEST = 0.5  # how much the latest judgement of a plan counts in what is thought of it


@dataclass
class _Known:
    expected: PlanEstimate
    relative: float | None = None  # its gain, where 1 is usual
    gain_per_s: float | None = None
    seconds: float = 0.0  # for a sample


@dataclass
class GainSearch:
    """What is known of each plan, and so which one is next."""

    alpha: float = DEFAULT_ALPHA
    _known: dict[RetrainingPlan, _Known] = field(default_factory=dict)
    _usual: float | None = None

    def offer(self, plans: Sequence[PlanEstimate]) -> None:
        """These are the plans from now on; what is known of those that stay is kept."""
        before = self._known
        self._known = {}
        for one in plans:
            seconds = 1.0 / one.samples_per_s if one.samples_per_s > 0 else 1.0
            known = before.get(one.plan, _Known(one))
            self._known[one.plan] = replace(known, expected=one, seconds=known.seconds or seconds)

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:
        """Learns what a micro-window showed; returns the plan's merit."""
        known = self._known[plan]
        gain = max(0.0, gain_per_s)
        if self._usual is None and gain > 0:
            self._usual = gain  # what gains nothing is no measure of the others
        elif self._usual is not None and known.relative and gain > 0:  # its share is known, so it tells the whole
            self._usual = max(gain / known.relative, FALLS * self._usual)
        relative = min(gain / self._usual, 4.0) if self._usual is not None else 0.0  # one lucky window decides little
        known.relative = relative if known.relative is None else (1 - LATEST) * known.relative + LATEST * relative
        known.gain_per_s, known.seconds = gain_per_s, seconds_per_sample
        return self.merit(plan)

    def merit(self, plan: RetrainingPlan) -> float:
        """P of a plan; one that was not tried yet is thought to gain what is usual."""
        known = self._known[plan]
        best = max((1.0 if one.relative is None else one.relative for one in self._known.values()), default=1.0)
        fastest = min(one.seconds for one in self._known.values())
        gain = (1.0 if known.relative is None else known.relative) / best if best > 0 else 1.0
        return self.alpha * gain + (1 - self.alpha) * fastest / known.seconds

    def best_other(self, plan: RetrainingPlan | None) -> tuple[RetrainingPlan, float] | None:
        """The best of the other plans that were tried, with its merit."""
        others = [one for one, known in self._known.items() if one != plan and known.relative is not None]
        if not others:
            return None
        best = max(others, key=self.merit)
        return best, self.merit(best)

    def untried(self) -> list[RetrainingPlan]:
        """In the order in which they were offered."""
        return [plan for plan, known in self._known.items() if known.relative is None]

    def best(self, like: RetrainingPlan | None = None) -> RetrainingPlan:
        """The one to go on with; where what went on until now fits no longer, the one that is most like it."""
        if like is not None:
            return min(self._known, key=lambda plan: (abs(plan.freeze_rate - like.freeze_rate), _apart(plan, like)))
        tried = [plan for plan, known in self._known.items() if known.relative is not None]
        return max(tried or list(self._known), key=self.merit)

    @property
    def estimates(self) -> tuple[PlanEstimate, ...]:
        """All of them, with their gains."""
        return tuple(replace(known.expected, gain_per_s=known.gain_per_s) for known in self._known.values())


def _apart(one: RetrainingPlan, other: RetrainingPlan) -> float:
    """How far two learning rates are from each other, for what an update of theirs learns from."""
    return abs(math.log(one.lr / other.lr) - 0.5 * math.log(one.effective_batch / other.effective_batch))
