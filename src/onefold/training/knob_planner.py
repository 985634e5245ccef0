"""Decide the knobs of the next window of steps: those of a similar job, or the candidates of a probing phase.

planner = KnobPlanner(options, available, machine, similar_jobs, profiler, settled)
planner.plan                        # the next window
planner.observe(window)             # its measurements; `plan` is now the window after it

Before knobs are settled, they and the default knobs are measured in turn: only that shows a gain. Afterwards the time
of a step, the load of other processes and, in reduced precision, the loss are watched. When the time or the load
changes, the knobs that depend on contention are probed again. Cores that the study lends are used while they make
steps cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean
from typing import Any

from onefold.processes import lent_cores
from onefold.training.contention_knobs import (
    LOAD_TOLERANCE,
    THREADS_KNOB,
    contention_knobs,
    uses_all_cores,
    with_a_core_per_thread,
    without_affinity,
)
from onefold.training.core_loan import CoreLoan
from onefold.training.job_profile import Profiler
from onefold.training.knob_memory import SimilarJob, SimilarJobs
from onefold.training.knob_notes import DRIFT_FACTOR, describe, drift_note
from onefold.training.knob_search import MIN_GAIN, STRATEGIES, Options, Setting
from onefold.training.knobs import AvailableKnobs
from onefold.training.knobs.catalog import PRECISION_KNOBS
from onefold.training.losses import LossDrift, is_no_worse
from onefold.training.window_plan import TRAINING_STEPS, KnobPlan, StepRules, WindowMeasurement
from onefold.vocabulary.knobs import JobProfile, KnobMemory, KnobOptions, Phase, SettledKnobs
from onefold.vocabulary.records import Config

MAX_STEPS = {"time": 50, "energy": 1000}  # of a window
MIN_STEPS_FOR_LOSS = 8  # of a window in which the losses of two precisions are compared
MAX_LENGTH = 2  # of a profiled or watched window with slow steps, in usual lengths
WINDOW_S = {"time": 0.1, "energy": 0.4}  # least duration of a window
WATCH_FACTOR = 4  # windows after probing are this much longer
COMPARISONS = 2  # windows each with the default and with the chosen knobs, in turn
SHORTENING = 4  # at most: compared windows of fast knobs have as many steps as those of the defaults
ABORT_FACTOR = 2  # a candidate whose steps take this much longer is aborted
DRIFT_WINDOWS = 2  # consecutive windows with drift start another probing phase
MAX_PROBE_INTERVAL = 64  # windows between two probing phases that changed nothing
MAX_RECALL_WINDOWS = 100  # during which earlier jobs are clustered


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
        rules: StepRules = TRAINING_STEPS,
    ) -> None:
        self.available = available
        self.settled = settled if settled is not None and settled.phase is not Phase.FOUND else None
        self.unsafe: set[str] = set()  # knobs with which the network does not run, or does not compute the same
        self.notes: list[str] = []  # decisions with their reasons
        self.profile: JobProfile | None = None
        self.learned: KnobMemory | None = None
        self._options = options
        self._machine = machine
        self._similar_jobs = similar_jobs
        self._profiler = profiler
        self._rules = rules
        self._window_s = rules.window_share * WINDOW_S[options.optimize_for]
        self._given_up = settled.given_up if settled is not None else ()
        self._slow: Options = {}  # knobs that take long to change, probed once
        self._load = 0.0  # when the knobs in use were chosen
        self._default_s = 0.0  # the time of a step with the default knobs; 0 if it was not measured
        self._loan = CoreLoan(lent_cores)
        self._uses_energy = options.optimize_for == "energy"
        self._plans = self._plan_windows()
        self.plan = next(self._plans)

    @property
    def lent_cores_in_use(self) -> int:
        """Return how many lent cores have proved useful."""
        return self._loan.in_use

    def observe(self, window: WindowMeasurement) -> None:
        """Take the measurements of the planned window and plan the next one."""
        self.plan = self._plans.send(window)

    def extend(self, available: AvailableKnobs) -> None:
        """Add the knobs that have become available; they take long to change and are probed last."""
        new = {name: options for name, options in available.options.items() if name not in self.available.options}
        self._slow = {**self._slow, **new}
        self.available = AvailableKnobs({**self.available.options, **new}, available.unavailable)

    def reject(self, name: str, reason: str) -> None:
        """Use the default of a knob from now on."""
        self.unsafe.add(name)
        self.notes.append(reason)
        if self.settled is not None:
            self.settled = replace(self.settled, setting=Config(self.safe(self.settled.setting)))

    def safe(self, setting: Mapping[str, Any]) -> Setting:
        """Return a setting with the defaults of all rejected knobs."""
        defaults = self.available.defaults
        return {name: defaults[name] if name in self.unsafe else value for name, value in setting.items()}

    def _plan_windows(self) -> Generator[KnobPlan, WindowMeasurement, None]:
        defaults = self.available.defaults
        if self.settled is not None:
            earlier, phase = self.settled.setting, self.settled.phase
            setting = self._restricted(earlier)
            window = yield self._planned(phase, setting, 0.0)
            if self._options.mode != "recall" and THREADS_KNOB in setting and THREADS_KNOB not in earlier:
                self.notes.append("there is more than one core now: probing again")
                knobs = contention_knobs(setting, window.load, self.available)
                setting, window = yield from self._probe(knobs, setting, window)
                self.settled = replace(self.settled, setting=Config(setting))
            yield from self._watch(setting, phase, window)
        window = yield KnobPlan(
            Phase.FOUND, defaults, self._rules.min_profiled_steps, is_profiled=True,
            enough_s=MAX_LENGTH * self._window_s, min_steps=self._rules.min_steps,
        )  # fmt: skip
        self.profile, self._default_s = self._profiler.profile, window.step_s
        if self._options.mode in ("on", "recall"):
            for _ in range(MAX_RECALL_WINDOWS):
                if self._similar_jobs.is_ready:
                    break
                window = yield self._planned(Phase.FOUND, defaults, window.step_s)
            similar = self._recalled(self.profile, window.load)
            if similar is not None:
                yield from self._reuse(similar, window)
                self.notes.append("the recalled knobs are not faster here: probing")
            elif self._options.mode == "recall":
                self.notes.append("no similar job is known: the knobs keep their defaults")
                yield from self._watch(defaults, Phase.FOUND, window)
        knobs = without_affinity(self.available.options, window.load)
        setting, window = yield from self._probe(knobs, defaults, window)
        setting, window = yield from self._settle(setting, Phase.SETTLED, window)
        yield from self._watch(setting, Phase.SETTLED, window)

    def _recalled(self, profile: JobProfile, load: float) -> SimilarJob | None:
        if not self._similar_jobs.is_ready:
            self.notes.append("clustering the profiles of earlier jobs takes too long: nothing is recalled")
            return None
        if self._similar_jobs.failure:
            self.notes.append(
                f"{self._options.similarity} failed ({self._similar_jobs.failure}): the jobs are clustered by k-means"
            )
        return self._similar_jobs.find(profile, load)

    def _reuse(self, similar: SimilarJob, default: WindowMeasurement) -> Generator[KnobPlan, WindowMeasurement, None]:
        """Train with the knobs of a similar job, but with contention knobs that are tested here.

        Return only if the recalled knobs are not faster than the defaults, and others may be probed.
        """
        defaults, setting = self.available.defaults, self._restricted(similar.memory.knobs)
        self.notes.append(
            f"recalled from a similar job (confidence {similar.confidence:.2f}): {describe(setting, defaults)}"
        )
        window = yield self._planned(Phase.RECALLED, setting, default.step_s)
        setting, window = yield from self._probe(
            contention_knobs(setting, window.load, self.available), setting, window
        )
        recalled = setting
        setting, window = yield from self._settle(setting, Phase.RECALLED, window, is_new=False)
        if setting == recalled or self._options.mode == "recall":
            yield from self._watch(setting, Phase.RECALLED, window)

    def _settle(
        self, setting: Setting, phase: Phase, window: WindowMeasurement, *, is_new: bool = True
    ) -> Generator[KnobPlan, WindowMeasurement, tuple[Setting, WindowMeasurement]]:
        """Compare a setting with the defaults, and use the better one from now on; remember it if it is new.

        `window` is the latest window with the setting. Return the setting in use and the latest window with it.
        """
        setting = self.safe(setting)
        defaults = self.available.defaults
        baseline, before, after = setting, [window], [window]
        if self._reduces_precision(setting):
            baseline = {name: defaults[name] if name in PRECISION_KNOBS else value for name, value in setting.items()}
            before, after = yield from self._compare_losses(baseline, setting, window)
        if baseline != defaults and self.safe(setting) == setting:
            baseline = defaults
            before, after = yield from self._compare(baseline, setting, after[-1])
        if self.safe(setting) != setting:  # reduced precision was rejected
            return (yield from self._settle(setting, phase, before[-1], is_new=is_new))
        if setting != defaults and self._cost(after) >= self._cost(before) * (1 - MIN_GAIN):
            self.notes.append(f"no faster than the defaults, measured in turn: {describe(setting, defaults)}")
            setting, after = defaults, before
        self._load = fmean([window.load for window in (*before, *after)])
        self.settled = SettledKnobs(self._machine, Config(setting), phase, self._given_up)
        costs = self._cost(before), self._cost(after)
        if is_new and self._is_worth_remembering and self.profile is not None and all(map(isfinite, costs)):
            self.learned = KnobMemory(
                self._machine, self._options.optimize_for, self._options.reduced, self.profile, Config(setting),
                *costs, self._load,
            )  # fmt: skip
        return setting, after[-1]

    @property
    def _is_worth_remembering(self) -> bool:
        """Return whether the job could be found again, and had a choice of knobs."""
        return self._profiler.is_complete and bool(self.available.options)

    def _compare_losses(
        self, exact: Setting, reduced: Setting, window: WindowMeasurement
    ) -> Generator[KnobPlan, WindowMeasurement, tuple[list[WindowMeasurement], list[WindowMeasurement]]]:
        """Measure a setting in full and in reduced precision in turn, and reject the latter if its loss is higher.

        Only the precision differs: the defaults may be so slow that their losses cost more than they tell.
        """
        before, after = yield from self._compare(exact, reduced, window, min_steps=MIN_STEPS_FOR_LOSS)
        if not is_no_worse(_losses(after), _losses(before)):
            self.notes.append("reduced precision raised the loss and was rejected")
            self.unsafe |= PRECISION_KNOBS
        return before, after

    def _compare(
        self, baseline: Setting, setting: Setting, window: WindowMeasurement, *, min_steps: int | None = None
    ) -> Generator[KnobPlan, WindowMeasurement, tuple[list[WindowMeasurement], list[WindowMeasurement]]]:
        """Measure a baseline and a setting in turn; return the windows of either.

        `window` is the latest window with the setting. Windows that are much slower are ended early, unless all must
        have `min_steps`: the losses of a shorter window would be those of another time in training.
        """
        before: list[WindowMeasurement] = []
        after: list[WindowMeasurement] = []
        is_default = baseline == self.available.defaults
        baseline_s = self._default_s if is_default and self._default_s else window.step_s
        after_s = min(baseline_s, SHORTENING * window.step_s)
        abort_s = ABORT_FACTOR * window.step_s if min_steps is None else math.inf
        for _ in range(COMPARISONS):
            pair = [(baseline, before, baseline_s), (setting, after, after_s)]
            # The order alternates, since losses fall and processors warm up meanwhile.
            for candidate, windows, step_s in pair if len(before) % 2 == 0 else reversed(pair):
                plan = self._planned(Phase.COMPARED, candidate, step_s, min_steps=min_steps)
                windows.append((yield replace(plan, abort_s=abort_s)))
        return before, after

    def _probe(
        self, knobs: Options, start: Setting, measured: WindowMeasurement
    ) -> Generator[KnobPlan, WindowMeasurement, tuple[Setting, WindowMeasurement]]:
        """Plan one window for each candidate of the search; return the best setting and its latest window.

        `measured` is the window before, which measured the setting `start`.
        """
        if not knobs:
            return start, measured
        proposals = STRATEGIES[self._options.probing](knobs)
        windows = {Config(start): measured}
        is_known = self._is_long_enough(measured)
        probed, window = 0, None
        while True:
            try:
                candidate = next(proposals) if window is None else proposals.send(self._cost([window]))
            except StopIteration as end:
                best = self.safe(with_a_core_per_thread({**start, **end.value}))
                break
            setting = with_a_core_per_thread({**start, **candidate})
            if is_known and setting == start:
                window, is_known = measured, False  # strategies that ask for it again get another window
            elif setting != {**start, **candidate} and Config(self.safe(setting)) in windows:
                window = windows[Config(self.safe(setting))]
            else:
                plan = self._planned(Phase.PROBED, setting, measured.step_s)
                window = yield replace(plan, abort_s=ABORT_FACTOR * measured.step_s)
                probed += 1
            windows[Config(self.safe(setting))] = window
            if self._uses_energy and window.step_j is None:
                self._uses_energy = False
                self.notes.append("the energy of short windows is unknown: the knobs are optimized for time")
        self.notes.append(f"probed {probed} windows of steps: {describe(best, self.available.defaults)}")
        return best, windows.get(Config(best), measured)

    def _watch(
        self, setting: Setting, phase: Phase, window: WindowMeasurement
    ) -> Generator[KnobPlan, WindowMeasurement, None]:
        """Plan windows with the settled knobs; probe slow knobs once, and others when the time or the load changes."""
        usual_s, usual_load = window.step_s, self._load if phase is not Phase.FOUND else window.load
        drifting, interval, watched, losses = 0, DRIFT_WINDOWS, 0, LossDrift()
        while True:
            yield from self._borrow(setting, phase, window, losses)
            window = yield self._watched(phase, setting, window.step_s)
            watched += 1
            self._check_loss(setting, window, losses)
            self._loan.observe(0, self._cost([window]))
            factor, load_change = window.step_s / usual_s, window.load - usual_load
            has_drifted = max(factor, 1 / factor) > DRIFT_FACTOR or abs(load_change) > LOAD_TOLERANCE
            drifting = drifting + 1 if has_drifted else 0
            before = setting = self.safe(setting)
            if self._slow and self._options.mode != "recall":
                slow, self._slow = self._slow, {}
                setting, window = yield from self._probe(slow, setting, window)
            elif drifting >= DRIFT_WINDOWS and watched >= interval:
                load = max(window.load, usual_load)
                contended = contention_knobs(setting, load, self.available)
                if not contended:
                    continue
                self.notes.append(drift_note(factor, load_change))
                setting, window = yield from self._probe(contended, setting, window)
                interval = DRIFT_WINDOWS if setting != before else min(MAX_PROBE_INTERVAL, 2 * interval)
                watched = 0
            else:
                continue
            if setting == before:
                self._load = window.load
            else:
                self._loan.reset()
                setting, window = yield from self._settle(setting, self._settled_phase(phase), window)
                phase = self._settled_phase(phase)
            usual_s, usual_load, drifting = window.step_s, self._load, 0

    def _borrow(
        self, setting: Setting, phase: Phase, own: WindowMeasurement, losses: LossDrift
    ) -> Generator[KnobPlan, WindowMeasurement, None]:
        """Plan windows on cores that the study lends, as long as they make steps cheaper.

        `own` is the latest window on the trial's own cores. Slow knobs are probed first, and a trial that does not use
        its own cores needs no more.
        """
        latest = own
        while not self._slow and uses_all_cores(setting, self.available):
            cores = self._loan.plan(self._cost([own]))
            if not cores:
                return
            if self._loan.is_probing:
                plan = replace(self._planned(Phase.PROBED, setting, own.step_s), abort_s=ABORT_FACTOR * own.step_s)
            else:
                plan = self._watched(phase, setting, latest.step_s)
            latest = yield replace(plan, lent_cores=cores)
            if plan.phase is phase:
                self._check_loss(setting, latest, losses)
            if self.safe(setting) != setting:
                self._loan.reset()
                return
            note = self._loan.observe(latest.lent_cores, self._cost([latest]))
            if note:
                self.notes.append(note)

    def _check_loss(self, setting: Setting, window: WindowMeasurement, losses: LossDrift) -> None:
        """Give reduced precision back if the loss rises."""
        if self._reduces_precision(self.safe(setting)) and losses.observe(window.losses):
            for name in PRECISION_KNOBS & set(setting):
                self.reject(name, f"the loss rises: {name} is {self.available.defaults[name]} again")

    def _settled_phase(self, phase: Phase) -> Phase:
        return Phase.SETTLED if phase is Phase.FOUND else phase

    def _is_long_enough(self, window: WindowMeasurement) -> bool:
        return window.steps * window.step_s >= self._window_s

    def _planned(self, phase: Phase, setting: Setting, step_s: float, *, min_steps: int | None = None) -> KnobPlan:
        """Return a window that is long enough for steps of `step_s`."""
        enough = math.ceil(self._window_s / step_s) if step_s > 0 else 0
        steps = min(max(enough, min_steps or self._rules.min_steps), MAX_STEPS[self._options.optimize_for])
        return KnobPlan(phase, setting, steps)

    def _watched(self, phase: Phase, setting: Setting, step_s: float) -> KnobPlan:
        """Return a window with a setting in use. It ends early if steps become slow: that is what it watches for."""
        plan = self._planned(phase, setting, step_s)
        is_reduced = self._reduces_precision(self.safe(setting))
        return replace(
            plan,
            steps=WATCH_FACTOR * plan.steps,
            enough_s=MAX_LENGTH * WATCH_FACTOR * self._window_s,
            min_steps=MIN_STEPS_FOR_LOSS if is_reduced else self._rules.min_steps,
        )

    def _restricted(self, knobs: Mapping[str, Any]) -> Setting:
        """Return a remembered setting with the default of every knob that does not have its value here."""
        setting = {
            name: knobs[name] if name in knobs and knobs[name] in options else options[0]
            for name, options in self.available.options.items()
        }
        return with_a_core_per_thread(setting)

    def _cost(self, windows: Sequence[WindowMeasurement]) -> float:
        """Return the lowest of what is minimized, seconds or joules: the same for all windows of a phase.

        Disturbances only add to it, and training that becomes faster by itself ends with a window of the defaults.
        """
        if not self._uses_energy:
            return min(window.step_s for window in windows)
        return min(window.step_j if window.step_j is not None else math.inf for window in windows)

    def _reduces_precision(self, setting: Mapping[str, Any]) -> bool:
        defaults = self.available.defaults
        return any(name in PRECISION_KNOBS and value != defaults.get(name) for name, value in setting.items())


def _losses(windows: Sequence[WindowMeasurement]) -> list[float]:
    return [loss for window in windows for loss in window.losses]
