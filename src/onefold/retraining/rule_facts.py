"""The facts that rules may refer to: about a plan, and about the progress of a retraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onefold.retraining.planning_context import PlanningContext
from onefold.retraining.rules import Fact
from onefold.vocabulary.retraining import MicroWindow, PlanEstimate


def plan_facts(context: PlanningContext, estimate: PlanEstimate, fastest_samples_per_s: float) -> dict[str, Fact]:
    """Return the facts about a plan."""
    plan = estimate.plan
    trainable_samples = estimate.samples_per_s * context.idle_left_s
    is_timed = fastest_samples_per_s > 0
    return {
        "batch_size": float(plan.batch_size),
        "accumulation": float(plan.accumulation),
        "effective_batch": float(plan.effective_batch),
        "freeze_rate": plan.freeze_rate,
        "segments": float(plan.segments),
        "epochs": float(plan.epochs),
        "lr": plan.lr,
        "optimizer": plan.optimizer,
        "layers": float(context.profile.staged.layers),
        "samples": float(context.samples),
        "updates": trainable_samples / plan.effective_batch,
        "passes": trainable_samples / max(1, context.samples),
        "memory_bytes": float(estimate.memory_bytes),
        "limit_bytes": float(context.limit_bytes),
        "update_s": estimate.update_s,
        "window_s": context.left_s,
        "fastest_update_share": estimate.samples_per_s / fastest_samples_per_s if is_timed else 1.0,
        "has_batch_norm": context.has_batch_norm,
    }


@dataclass(frozen=True)
class RetrainingProgress:
    """The state after a micro-window. Scores are oriented so that higher is better."""

    elapsed_s: float
    left_s: float
    micro_window_s: float
    windows: Sequence[MicroWindow]
    score: float
    best_score: float
    first_score: float
    stalled: int
    best_other_merit: float
    predicted_bytes: int
    limit_bytes: int
    used_bytes: int
    plans: int
    lowered: int

    def facts(self) -> dict[str, Fact]:
        """Return the facts about the progress; an unknown number is nan."""
        last = self.windows[-1]
        losses = [window.loss for window in self.windows if math.isfinite(window.loss)]
        return {
            "elapsed_s": self.elapsed_s,
            "left_s": self.left_s,
            "micro_window_s": self.micro_window_s,
            "loss": last.loss,
            "best_loss": min(losses, default=math.nan),
            "first_loss": self.windows[0].loss,
            "is_finite": math.isfinite(last.loss),
            "score": self.score,
            "best_score": self.best_score,
            "first_score": self.first_score,
            "gain_per_s": last.gain_per_s,
            "stalled": float(self.stalled),
            "lowered": float(self.lowered),
            "merit": last.merit,
            "best_other_merit": self.best_other_merit,
            "plans": float(self.plans),
            "predicted_bytes": float(self.predicted_bytes),
            "measured_bytes": math.nan if last.measured_bytes is None else float(last.measured_bytes),
            "limit_bytes": float(self.limit_bytes),
            "free_bytes": float(max(0, self.limit_bytes - self.used_bytes)),
        }
