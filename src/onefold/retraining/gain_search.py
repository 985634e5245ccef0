"""The gain search of MPOptimizer: which plan continues.

Each plan runs for a micro-window, whose training is kept. Its merit is P = alpha * gain + (1 - alpha) / time, both
relative to the best plan. Gains shrink as a model improves, whatever the plan: a gain counts relative to what was usual
at the time. The best plan continues, is measured again, and is replaced when another has a higher merit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onefold.vocabulary.retraining import DEFAULT_ALPHA, PlanEstimate, RetrainingPlan

MIN_GAIN_DECAY = 0.6  # of the usual gain from one micro-window to the next; a larger drop is attributed to the plan
SMOOTHING = 0.35  # weight of the latest gain of a plan; more in its first micro-windows
MAX_RELATIVE_GAIN = 4.0  # one lucky micro-window decides little


@dataclass
class _PlanRecord:
    estimate: PlanEstimate
    relative_gain: float | None = None  # 1 is usual; None before the first micro-window
    micro_windows: int = 0
    gain_per_s: float | None = None
    seconds_per_sample: float = 0.0


@dataclass
class GainSearch:
    """Record the gain of each plan and rank plans by merit."""

    alpha: float = DEFAULT_ALPHA
    _records: dict[RetrainingPlan, _PlanRecord] = field(default_factory=dict)
    _usual_gain: float | None = None

    def offer(self, estimates: Sequence[PlanEstimate]) -> None:
        """Replace the plans to choose from; records of plans that stay are kept."""
        before = self._records
        self._records = {}
        for estimate in estimates:
            predicted_s = 1.0 / estimate.samples_per_s if estimate.samples_per_s > 0 else 1.0
            record = before.get(estimate.plan, _PlanRecord(estimate))
            seconds = record.seconds_per_sample or predicted_s
            self._records[estimate.plan] = replace(record, estimate=estimate, seconds_per_sample=seconds)

    def tell(self, plan: RetrainingPlan, gain_per_s: float, seconds_per_sample: float) -> float:
        """Record the result of a micro-window and return the plan's merit."""
        record = self._records[plan]
        previous = record.relative_gain
        if self._usual_gain is None and gain_per_s > 0:
            self._usual_gain = gain_per_s
        elif self._usual_gain is not None and previous is not None and previous > 0 and gain_per_s > 0:
            # A known plan calibrates what is usual.
            self._usual_gain = max(gain_per_s / previous, MIN_GAIN_DECAY * self._usual_gain)
        usual = self._usual_gain
        # Losses count too: without them, a plan whose gains scatter more would seem better.
        relative = max(-MAX_RELATIVE_GAIN, min(gain_per_s / usual, MAX_RELATIVE_GAIN)) if usual is not None else 0.0
        record.micro_windows += 1
        weight = max(SMOOTHING, 1 / record.micro_windows)
        record.relative_gain = relative if previous is None else (1 - weight) * previous + weight * relative
        record.gain_per_s, record.seconds_per_sample = gain_per_s, seconds_per_sample
        return self.merit(plan)

    def merit(self, plan: RetrainingPlan) -> float:
        """Return P of a plan; an untried plan is assumed to gain what is usual."""
        record, records = self._records[plan], self._records.values()
        best = max((_relative_gain(other) for other in records), default=1.0)
        fastest = min(other.seconds_per_sample for other in records)
        gain = _relative_gain(record) / best if best > 0 else 1.0
        return self.alpha * max(0.0, gain) + (1 - self.alpha) * fastest / record.seconds_per_sample

    def best_other(self, plan: RetrainingPlan | None) -> tuple[RetrainingPlan, float] | None:
        """Return the best of the other tried plans with its merit; None if there is none that gained.

        Where gain counts, a plan that lost is not better than another one that lost, however fast it is.
        """
        others = [other for other in self.tried() if other != plan and (self.alpha == 0 or self.has_gained(other))]
        if not others:
            return None
        best = max(others, key=self.merit)
        return best, self.merit(best)

    def has_gained(self, plan: RetrainingPlan) -> bool:
        """Return whether a plan that was tried gained in the mean of its micro-windows."""
        return _relative_gain(self._records[plan]) > 0

    def relative_gains(self) -> dict[RetrainingPlan, float]:
        """Return the gains of all plans that were tried, relative to what was usual at the time."""
        return {plan: _relative_gain(self._records[plan]) for plan in self.tried()}

    def micro_windows(self, plan: RetrainingPlan) -> int:
        """Return how many micro-windows a plan has had."""
        return self._records[plan].micro_windows

    def untried(self) -> list[RetrainingPlan]:
        """Return the plans without a micro-window, in the order in which they were offered."""
        return [plan for plan, record in self._records.items() if record.relative_gain is None]

    def best(self, like: RetrainingPlan | None = None) -> RetrainingPlan:
        """Return the tried plan of the highest merit, or the first one if none was tried.

        With `like`, a plan that no longer fits, the one most similar to it.
        """
        if like is not None:
            return min(
                self._records,
                key=lambda plan: (
                    abs(plan.freeze_rate - like.freeze_rate),
                    plan.optimizer != like.optimizer,
                    _lr_distance(plan, like),
                ),
            )
        return max(self.tried() or [next(iter(self._records))], key=self.merit)

    @property
    def estimates(self) -> tuple[PlanEstimate, ...]:
        """Return all plans with their latest gains."""
        return tuple(replace(record.estimate, gain_per_s=record.gain_per_s) for record in self._records.values())

    def tried(self) -> list[RetrainingPlan]:
        """Return the plans that have had a micro-window."""
        return [plan for plan, record in self._records.items() if record.relative_gain is not None]


def _relative_gain(record: _PlanRecord) -> float:
    return 1.0 if record.relative_gain is None else record.relative_gain


def _lr_distance(first: RetrainingPlan, other: RetrainingPlan) -> float:
    """Return the log ratio of two learning rates, each relative to its effective batch."""
    return abs(math.log(first.lr / other.lr) - 0.5 * math.log(first.effective_batch / other.effective_batch))
