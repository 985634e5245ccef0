"""What happens in a retraining, reported to its caller at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from onefold.retraining.evaluation import Evaluation
from onefold.retraining.time_window import TimeWindow
from onefold.vocabulary.retraining import MicroWindow, Reaction, RetrainingEvent, RetrainingPlan


@dataclass
class RetrainingRecord:
    """The micro-windows of a retraining, and the decisions of its rules."""

    window: TimeWindow
    on_event: Callable[[RetrainingEvent], None]
    windows: list[MicroWindow] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)
    first_update_s: float | None = None  # when the model was first changed
    best: Evaluation | None = None  # of the best model so far on the subset; None if it is the given one
    latest: Evaluation | None = None  # of the network as it is, on the subset; None if it has changed since

    def begin_update(self) -> None:
        """Record that the model is changed from now on, unless it was before."""
        if self.first_update_s is None:
            self.first_update_s = self.window.elapsed_s

    def add(self, window: MicroWindow) -> None:
        """Record a micro-window."""
        self.windows.append(window)
        self.on_event(window)

    def react(self, rule: str, message: str) -> None:
        """Record a decision of a rule."""
        reaction = Reaction(self.window.elapsed_s, rule, message)
        self.reactions.append(reaction)
        self.on_event(reaction)

    def most_used_plan(self) -> RetrainingPlan | None:
        """Return the plan that had the most time; None without a micro-window."""
        seconds: dict[RetrainingPlan, float] = {}
        for window in self.windows:
            seconds[window.plan] = seconds.get(window.plan, 0.0) + window.ended_s - window.began_s
        return max(seconds, key=lambda plan: seconds[plan]) if seconds else None
