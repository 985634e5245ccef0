"""Decide the knobs of the next window of steps: those of a similar job, or the candidates of a probing phase.

planner = KnobPlanner(options, available, machine, similar_jobs, profiler, settled)
planner.plan                        # the next window
planner.observe(window)             # its measurements; `plan` is now the window after it

Once the knobs are settled, the time of a step is watched. When it drifts, the knobs that depend on contention with
other processes are probed again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onefold.training.job_profile import Profiler
from onefold.training.knob_memory import SimilarJob, SimilarJobs
from onefold.training.knob_search import STRATEGIES, Options, Setting
from onefold.training.knobs import AvailableKnobs
from onefold.training.knobs.catalog import PRECISION_KNOBS
from onefold.training.losses import is_no_worse
from onefold.vocabulary.knobs import JobProfile, KnobMemory, KnobOptions, Phase, SettledKnobs
from onefold.vocabulary.records import Config

MIN_STEPS, MAX_STEPS = 3, {"time": 50, "energy": 1000}  # of a window
MIN_STEPS_FOR_LOSS = 8  # of a window in which the losses of two precisions are compared
WINDOW_S = {"time": 0.1, "energy": 0.4}  # least duration of a window
WATCH_FACTOR = 4  # windows after probing are this much longer
DRIFT_FACTOR = 1.3  # a step time that changes by more is drift
DRIFT_WINDOWS = 2  # consecutive windows with drift start another probing phase
MAX_PROBE_INTERVAL = 64  # windows between two probing phases that changed nothing
MAX_RECALL_WINDOWS = 100  # during which earlier jobs are clustered
CONTENTION_KNOBS = ("threads", "cores")  # their best values depend on other processes
AFFINITY_KNOB = "cores"  # only probed under contention


@dataclass(frozen=True, slots=True)
class KnobPlan:
    """The next window of steps."""

    phase: Phase
    setting: Setting
    steps: int
    is_profiled: bool = False
    abort_s: float = math.inf  # the window ends early if its steps take longer


@dataclass(frozen=True, slots=True)
class WindowMeasurement:
    """What a window of steps measured."""

    step_s: float
    step_j: float | None
    losses: list[float]
    steps: int


class KnobPlanner:
    """Plans the windows of one trial in one rung."""

    def __init__(
        self,
        options: KnobOptions,
        available: AvailableKnobs,
        machine: str,
        similar_jobs: SimilarJobs,
        profiler: Profiler,
        settled: SettledKnobs | None = None,
    ) -> None:
        self.available = available
        self.settled = settled
        self.unsafe: set[str] = set()  # knobs with which the network does not run
        self.notes: list[str] = []  # decisions with their reasons
        self.profile: JobProfile | None = None
        self.learned: KnobMemory | None = None
        self._options = options
        self._machine = machine
        self._similar_jobs = similar_jobs
        self._profiler = profiler
        self._slow: Options = {}  # knobs that take long to change, probed once
        self._default_cost = math.inf  # lowest cost of a step with the default knobs
        self._uses_energy = options.optimize_for == "energy"
        self._plans = self._plan_windows(settled)
        self.plan = next(self._plans)

    def observe(self, window: WindowMeasurement) -> None:
        """Take the measurements of the planned window and plan the next one."""
        self.plan = self._plans.send(window)

    def extend(self, available: AvailableKnobs) -> None:
        """Add the knobs that have become available; they take long to change and are probed last."""
        new = {name: options for name, options in available.options.items() if name not in self.available.options}
        self._slow = {**self._slow, **new}
        self.available = AvailableKnobs({**self.available.options, **new}, available.unavailable)

    def _plan_windows(self, settled: SettledKnobs | None) -> Generator[KnobPlan, WindowMeasurement, None]:
        defaults = self.available.defaults
        if settled is not None:
            setting = self._restricted(settled.setting)
            window = yield self._planned(settled.phase, setting, 0.0)
            yield from self._watch(setting, settled.phase, window)
        steps = MIN_STEPS_FOR_LOSS if self._options.reduced else MIN_STEPS
        window = yield KnobPlan(Phase.FOUND, defaults, steps, is_profiled=True)
        self.profile = self._profiler.profile
        similar = None
        if self._options.mode in ("on", "recall"):
            for _ in range(MAX_RECALL_WINDOWS):
                if self._similar_jobs.is_ready:
                    break
                window = yield self._planned(Phase.FOUND, defaults, window.step_s)
            similar = self._recall(self.profile)
        if similar is not None:
            setting = self._restricted(similar.memory.knobs)
            self.notes.append(
                f"recalled from a similar job (confidence {similar.confidence:.2f}): {_describe(setting, defaults)}"
            )
            recalled = yield self._planned(Phase.RECALLED, setting, window.step_s)
            if setting == defaults or recalled.step_s < window.step_s or self._options.mode == "recall":
                self.settled = SettledKnobs(self._machine, Config(setting), Phase.RECALLED)
                yield from self._watch(setting, Phase.RECALLED, recalled)
            self.notes.append("the recalled knobs are not faster here: probing")
        elif self._options.mode == "recall":
            self.notes.append("no similar job is known: the knobs keep their defaults")
            yield from self._watch(defaults, Phase.FOUND, window)
        knobs = {name: options for name, options in self.available.options.items() if name != AFFINITY_KNOB}
        setting = yield from self._probe(knobs, defaults, window)
        window = yield from self._settle(setting, Phase.SETTLED, window.step_s)
        yield from self._watch(setting, Phase.SETTLED, window)

    def _recall(self, profile: JobProfile) -> SimilarJob | None:
        if not self._similar_jobs.is_ready:
            self.notes.append("clustering the profiles of earlier jobs takes too long: nothing is recalled")
            return None
        if self._similar_jobs.failure:
            self.notes.append(
                f"{self._options.similarity} failed ({self._similar_jobs.failure}): the jobs are clustered by k-means"
            )
        return self._similar_jobs.find(profile)

    def _settle(
        self, setting: Setting, phase: Phase, step_s: float
    ) -> Generator[KnobPlan, WindowMeasurement, WindowMeasurement]:
        """Plan the first window with the result of probing, and remember what it measures."""
        self.settled = SettledKnobs(self._machine, Config(setting), phase)
        window = yield self._planned(phase, setting, step_s)
        if self.profile is not None and self._profiler.has_operators and self._default_cost < math.inf:
            self.learned = KnobMemory(
                self._machine, self._options.optimize_for, self._options.reduced, self.profile, Config(setting),
                self._default_cost, self._cost(window),
            )  # fmt: skip
        return window

    def _probe(
        self, knobs: Options, start: Setting, measured: WindowMeasurement
    ) -> Generator[KnobPlan, WindowMeasurement, Setting]:
        """Plan one window for each candidate of the search and return the best setting.

        `measured` is the window before, which measured the setting `start`.
        """
        proposals = STRATEGIES[self._options.probing](knobs)
        losses: list[tuple[bool, list[float]]] = []  # of each window, and whether its precision was reduced
        probed, window = 0, None
        self._default_cost = math.inf
        while True:
            try:
                candidate = next(proposals) if window is None else proposals.send(self._cost(window))
            except StopIteration as end:
                best: Setting = {**start, **end.value}
                break
            setting = {**start, **candidate}
            if window is None and setting == start and self._is_long_enough(measured):
                window = measured
            else:
                plan = self._planned(Phase.PROBED, setting, measured.step_s)
                window = yield replace(plan, abort_s=2 * measured.step_s)
                probed += 1
            losses.append((self._reduces_precision(setting), window.losses))
            if len(losses) == 1 and self._uses_energy and window.step_j is None:
                self._uses_energy = False
                self.notes.append("the energy of short windows is unknown: the knobs are optimized for time")
            if self._has_defaults(setting, knobs):
                self._default_cost = min(self._default_cost, self._cost(window))
        defaults = self.available.defaults
        if PRECISION_KNOBS & set(knobs) and self._reduces_precision(best) and not is_no_worse(*_adjacent(losses)):
            best = {name: defaults[name] if name in PRECISION_KNOBS else value for name, value in best.items()}
            self.notes.append("reduced precision raised the loss and was rejected")
        best = {name: defaults[name] if name in self.unsafe else value for name, value in best.items()}
        self.notes.append(f"probed {probed} windows of steps: {_describe(best, defaults)}")
        return best

    def _is_long_enough(self, window: WindowMeasurement) -> bool:
        return window.steps * window.step_s >= WINDOW_S[self._options.optimize_for]

    def _has_defaults(self, setting: Setting, knobs: Options) -> bool:
        return all(setting.get(name) == self.available.defaults.get(name) for name in knobs)

    def _watch(
        self, setting: Setting, phase: Phase, window: WindowMeasurement
    ) -> Generator[KnobPlan, WindowMeasurement, None]:
        """Plan windows with the settled knobs; probe slow knobs once, and others when the step time drifts."""
        usual_s, drifting, interval, watched = window.step_s, 0, DRIFT_WINDOWS, 0
        while True:
            window = yield self._planned(phase, setting, window.step_s, is_watched=True)
            watched += 1
            factor = window.step_s / usual_s
            drifting = drifting + 1 if max(factor, 1 / factor) > DRIFT_FACTOR else 0
            if self._options.mode == "recall":
                continue
            if self._slow:
                slow, self._slow = self._slow, {}
                setting = yield from self._probe(slow, setting, window)
                window = yield from self._settle(setting, phase, window.step_s)
                usual_s, drifting = window.step_s, 0
            elif drifting >= DRIFT_WINDOWS and watched >= interval and self._contention_knobs(setting):
                self.notes.append(f"a step takes {factor:.2g}x as long as before: probing again")
                before = setting
                setting = yield from self._probe(self._contention_knobs(setting), setting, window)
                self.settled = SettledKnobs(self._machine, Config(setting), phase)
                window = yield self._planned(phase, setting, window.step_s)
                usual_s, drifting, watched = window.step_s, 0, 0
                interval = DRIFT_WINDOWS if setting != before else min(MAX_PROBE_INTERVAL, 2 * interval)

    def _contention_knobs(self, setting: Setting) -> Options:
        """Return the options of the knobs that depend on contention, their current values first."""
        knobs = {name: options for name, options in self.available.options.items() if name in CONTENTION_KNOBS}
        return {
            name: tuple(dict.fromkeys([setting.get(name, options[0]), *options])) for name, options in knobs.items()
        }

    def _planned(self, phase: Phase, setting: Setting, step_s: float, *, is_watched: bool = False) -> KnobPlan:
        """Return a window that is long enough for steps of `step_s`."""
        optimize_for = self._options.optimize_for
        enough = math.ceil(WINDOW_S[optimize_for] / step_s) if step_s > 0 else MIN_STEPS
        fewest = MIN_STEPS_FOR_LOSS if self._options.reduced and phase is Phase.PROBED else MIN_STEPS
        steps = min(max(enough, fewest), MAX_STEPS[optimize_for])
        return KnobPlan(phase, setting, steps * WATCH_FACTOR if is_watched else steps)

    def _restricted(self, knobs: Mapping[str, Any]) -> Setting:
        """Return a remembered setting with the default of every knob that does not have its value here."""
        return {
            name: knobs[name] if name in knobs and knobs[name] in options else options[0]
            for name, options in self.available.options.items()
        }

    def _cost(self, window: WindowMeasurement) -> float:
        """Return what is minimized, seconds or joules: the same for all windows of a probing phase."""
        if not self._uses_energy:
            return window.step_s
        return window.step_j if window.step_j is not None else math.inf

    def _reduces_precision(self, setting: Mapping[str, Any]) -> bool:
        defaults = self.available.defaults
        return any(name in PRECISION_KNOBS and value != defaults.get(name) for name, value in setting.items())


def _adjacent(losses: Sequence[tuple[bool, list[float]]]) -> tuple[list[float], list[float]]:
    """Return the losses of the last window with reduced precision, and of the exact ones just before and after it.

    Losses fall during the comparison, so exact windows on both sides are needed.
    """
    last = max(index for index, (is_reduced, _) in enumerate(losses) if is_reduced)
    before = next((values for is_reduced, values in reversed(losses[:last]) if not is_reduced), [])
    after = next((values for is_reduced, values in losses[last:] if not is_reduced), [])
    return losses[last][1], before + after


def _describe(setting: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    changed = [f"{name} {value}" for name, value in setting.items() if defaults.get(name) != value]
    return ", ".join(changed) if changed else "the defaults are best"
