"""A window: consecutive training steps with the same knobs, while it is open and as it is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import fmean, median

from onefold.meter.meter import Window as MeterWindow
from onefold.training.knob_search import Setting
from onefold.training.losses import BackwardPasses
from onefold.training.neighbor_load import NeighborLoad
from onefold.training.window_plan import KnobPlan
from onefold.vocabulary.knobs import StepWindow

TAIL_WEIGHT = 0.5  # of the mean time of a step: less than this share of a window's time may be that of a few slow steps


@dataclass
class OpenWindow:
    """The current window. It is paused between two epochs."""

    plan: KnobPlan
    setting: Setting  # that of the plan, without knobs with which the network does not run
    warm_up: int  # remaining steps that are not counted
    steps_s: list[float] = field(default_factory=list)
    passes: BackwardPasses = field(default_factory=BackwardPasses)
    passes_per_step: list[int] = field(default_factory=list)
    counted_s: float = 0.0
    others_s: float = 0.0  # processor time of other processes meanwhile
    joules: float = 0.0
    source: str = "unavailable"  # of the joules
    started_at: float | None = None  # Unix time
    started: float = 0.0  # when counting started or continued
    others_started: float = 0.0
    neighbors: NeighborLoad | None = None  # measures that time
    paused_started: float = 0.0
    meter: MeterWindow | None = None  # while it counts
    observers: ExitStack = field(default_factory=ExitStack)

    @property
    def load(self) -> float:
        """Return the number of cores that other processes kept busy."""
        return max(0.0, self.others_s) / self.counted_s if self.counted_s > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Return the time of a step: the median, unless a few slow steps take most of the window's time.

        One hiccup says nothing about a setting. Threads that wait for each other beside a busy neighbor make most steps
        hardly slower, but some of them a hundred times.
        """
        return max(median(self.steps_s), TAIL_WEIGHT * fmean(self.steps_s))

    def is_slower_than(self, step_s: float) -> bool:
        """Return whether a step takes longer, whatever hiccups there were: every step, or twice as long on average."""
        return max(min(self.steps_s), TAIL_WEIGHT * fmean(self.steps_s)) > step_s

    @property
    def has_steps_without_backward(self) -> bool:
        """Return whether some steps had a backward pass and others none: batches are then fetched ahead."""
        return self.passes.count > 0 and 0 in self.passes_per_step


def merged(windows: Sequence[StepWindow]) -> Iterator[StepWindow]:
    """Yield the windows with consecutive ones of the same phase and setting merged."""
    for _, group in groupby(windows, key=lambda window: (window.phase, window.knobs)):
        members = list(group)
        steps = sum(window.steps for window in members)
        metered = [window for window in members if window.step_j is not None]
        loaded = [window for window in members if window.load is not None]
        joules = sum(window.steps * (window.step_j or 0.0) for window in metered)
        load = sum(window.steps * (window.load or 0.0) for window in loaded)
        yield replace(
            members[0],
            steps=steps,
            step_s=sum(window.steps * window.step_s for window in members) / steps,
            step_j=joules / sum(window.steps for window in metered) if metered else None,
            load=load / sum(window.steps for window in loaded) if loaded else None,
        )
