"""Tune knobs while a trial trains, in windows of a few steps with the same knobs.

session = KnobSession(context, options, meter=meter, machine=machine, remembered=memories)
for batch in session.tuned(batches): ...            # in every epoch
with session.for_evaluation(): ...                  # between epochs: the settled knobs, in full precision
session.report(epoch)                               # the windows since the last report, and what was learned

Training steps are repetitive: a few of them predict the cost of the next thousand. The first window profiles the job
with the default knobs; `KnobPlanner` decides about all further ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import Any

import torch

from onefold.meter import Meter
from onefold.processes import paused_s, running_s
from onefold.training.borrowed_cores import BorrowedCores
from onefold.training.forward_call import ForwardCall, output_error, runs
from onefold.training.job_clusters import Clusterer, kmeans_labels
from onefold.training.job_profile import Profiler
from onefold.training.knob_memory import SimilarJobs
from onefold.training.knob_planner import KnobPlanner
from onefold.training.knob_search import Setting
from onefold.training.knobs import (
    AvailableKnobs,
    Knob,
    TrainingContext,
    applied,
    available_knobs,
    narrowed,
    why_nothing_acts,
)
from onefold.training.knobs.catalog import KNOBS, PRECISION_KNOBS
from onefold.training.knobs.processor import ThreadCount, is_same_machine
from onefold.training.neighbor_load import NeighborLoad, StatLoad
from onefold.training.step_window import OpenWindow, merged
from onefold.training.window_plan import TRAINING_STEPS, StepRules, WindowMeasurement
from onefold.vocabulary.errors import NotANumber, SpaceError
from onefold.vocabulary.knobs import KnobMemory, KnobOptions, KnobRecord, Phase, SettledKnobs, StepWindow
from onefold.vocabulary.records import Config, Epoch

SHORT_EPOCH = 2  # epochs with this many steps or fewer have no warm-up
ABORT_STEPS = 2  # slow steps after which a candidate is aborted
MAX_WINDOWS = 60  # in the record of an epoch; more are merged
MAX_SETUP_SHARE = 0.03  # of the remaining time that changing one knob may take
LIMITS = frozenset({"memory_gib"})  # knobs whose only gain would be noise
MAX_OUTPUT_ERROR = 0.1  # of reduced precision, relative to how much the outputs of samples differ
CALL_ATTEMPTS = 10  # steps in which a forward pass of the network is awaited
PRECISION_CHECK_STEPS = 200  # steps between two checks of this error

FETCHES_AHEAD = "the loop fetches several batches before it trains on them, or trains elsewhere: steps cannot be timed"
OTHER_THREAD = "another thread reads the batches: steps cannot be timed"


class KnobSession:
    """Tunes the knobs of one trial in one rung."""

    def __init__(
        self,
        context: TrainingContext,
        options: KnobOptions,
        *,
        meter: Meter,
        machine: str,
        remembered: Sequence[KnobMemory] = (),
        settled: SettledKnobs | None = None,
        clusterer: Clusterer = kmeans_labels,
        knobs: Sequence[Knob] = KNOBS,
        neighbors: NeighborLoad | None = None,
        rules: StepRules = TRAINING_STEPS,
        notes: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._options = options
        self._meter = meter
        self._machine = machine
        self._knobs = {knob.name: knob for knob in knobs}
        self._neighbors = neighbors
        self._borrowed = BorrowedCores()
        self._evaluation = ExitStack()  # lent cores that are used for it
        self._rules = rules
        self._profiler = Profiler(of_network=rules.train_networks)
        settled = settled if settled is not None and is_same_machine(settled.machine, machine) else None
        self._given_up = settled.given_up if settled is not None else ()
        is_settled = settled is not None and settled.phase is not Phase.FOUND
        known = [] if is_settled else [memory for memory in remembered if self._applies(memory)]
        self._planner = KnobPlanner(
            options,
            self._available(),
            machine,
            SimilarJobs(known, clusterer),
            self._profiler,
            settled,
            rules,
        )
        self._planner.notes.extend(notes)
        self._applied = ExitStack()
        self._setting: Setting = {}  # the knobs that are applied
        self._window: OpenWindow | None = None
        self._step_started: float | None = None
        self._observers = ExitStack()  # of the current step, without the fetching of the next batch
        self._call = ForwardCall(context.model)
        self._call_attempts = 0
        self._safe: set[tuple[str, Any]] = set()  # values with which the network runs
        self._unchecked_steps = 0  # in reduced precision
        self._epochs = 0
        self._steps = 0  # of the current or latest epoch
        self._warm_up = rules.warm_up
        self._changed: dict[
            str, Any
        ] = {}  # knobs that differed from their defaults in this epoch, latest first use last
        self._thread = threading.get_ident()
        self._untunable = ""
        self._windows: list[StepWindow] = []
        self._has_reported_profile = False

    @property
    def settled(self) -> SettledKnobs | None:
        """Return the knobs that were settled on, and those that were given up; None if there are neither."""
        if self._planner.settled is None and self._given_up:
            return SettledKnobs(self._machine, Config(), Phase.FOUND, self._given_up)
        return self._planner.settled

    def may_have_caused(self, error: Exception) -> bool:
        """Return whether a changed knob may have caused an epoch or its evaluation to fail."""
        return bool(self._suspects(error))

    def without_suspect(self, error: Exception) -> tuple[SettledKnobs, str]:
        """Restore the defaults; return the settled knobs without the one that changed last, and its name and value.

        Only that one is given up. If it was another one, the repeated epoch fails again.
        """
        self.restore()
        name, value = self._suspects(error)[-1]
        given_up = (*self._given_up, name)
        settled = self._planner.settled
        if settled is None:
            return SettledKnobs(self._machine, Config(), Phase.FOUND, given_up), f"{name} {value}"
        setting = Config({other: kept for other, kept in settled.setting.items() if other != name})
        return SettledKnobs(self._machine, setting, settled.phase, given_up), f"{name} {value}"

    def tuned(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch and change knobs between them."""
        self.restore()
        self._changed.clear()
        self._epochs = epoch = self._epochs + 1
        if not self._untunable and threading.get_ident() != self._thread:
            self._refuse(OTHER_THREAD)
        if self._untunable:
            yield from batches
            return
        steps, self._steps = self._steps, 0
        self._warm_up = self._rules.warm_up if steps > SHORT_EPOCH or epoch == 1 else 0
        try:
            for batch in batches:
                self._end_step()
                if not self._untunable:
                    self._start_step()
                self._steps += 1
                yield self._context.adapt(batch)
                self._observers.close()
            self._end_step()
        finally:
            if epoch == self._epochs:  # not for an abandoned generator that is only now collected
                self.restore()

    @contextmanager
    def for_evaluation(self) -> Iterator[None]:
        """Set the settled knobs for the block, except those of precision."""
        settled = self._planner.settled.setting if self._planner.settled is not None else {}
        setting = {name: value for name, value in settled.items() if name not in PRECISION_KNOBS}
        self._changed = dict(self._differences(setting))
        lent = self._borrowed.added_to(setting, self._planner.lent_cores_in_use)
        with applied(setting, self._context, list(self._knobs.values())), self._evaluation:
            self._evaluation.enter_context(applied(lent, self._context, [ThreadCount(), self._borrowed]))
            yield

    def return_lent_cores(self) -> None:
        """Leave lent cores that were taken back during an evaluation; training does so by itself."""
        if self._borrowed.were_taken_back:
            self._evaluation.close()

    def restore(self) -> None:
        """Restore the defaults. The next epoch continues the current window."""
        self._step_started = None
        self._observers.close()
        if self._window is not None:
            self._pause(self._window)
        self._applied.close()
        self._applied, self._setting = ExitStack(), {}

    def expect(self, remaining_s: float) -> None:
        """Make the knobs available whose slow change is worth it in the remaining training time."""
        self._planner.extend(self._available(max_setup_s=MAX_SETUP_SHARE * remaining_s))

    def report(self, epoch: Epoch) -> KnobRecord:
        """Return what happened since the last report as the record of this epoch."""
        planner = self._planner
        record = KnobRecord(
            epoch.trial, epoch.rung, epoch.number,
            windows=tuple(merged(self._windows) if len(self._windows) > MAX_WINDOWS else self._windows),
            profile=None if self._has_reported_profile else planner.profile,
            learned=None if self._options.options else planner.learned,  # the best of some knobs only
            notes=tuple(planner.notes),
            missing=planner.available.unavailable,
            defaults=planner.available.defaults,
            in_use=planner.settled.setting if planner.settled is not None else None,
            untunable=self._untunable,
        )  # fmt: skip
        self._has_reported_profile = planner.profile is not None
        self._windows, planner.notes, planner.learned = [], [], None
        return record

    # Windows: the cost of steps with one setting.

    def _start_step(self) -> None:
        planned = self._window.plan if self._window is not None else self._planner.plan
        if not self._call.is_known and self._call_attempts < CALL_ATTEMPTS:
            self._call_attempts += 1
            self._observers.enter_context(self._call.recorded())
            if self._untested(planned.setting):
                self._apply(self._planner.available.defaults)  # until it is known how the network is called
                return
        self._check_precision()
        setting = self._borrowed.added_to(self._tested(planned.setting), planned.lent_cores)
        were_taken_back = self._borrowed.were_taken_back
        if self._window is not None and (self._window.setting != setting or were_taken_back):
            self._pause(self._window)  # a knob was rejected within the window, or lent cores were taken back
            if self._window.steps_s:
                self._record(self._window)
            self._window = None
        if self._window is None:
            additional = self._rules.first_warm_up - self._rules.warm_up if planned.is_profiled else 0
            self._window = OpenWindow(planned, setting, additional)
        window = self._window
        if setting != self._setting or were_taken_back:
            self._apply(setting)
            window.warm_up += self._warm_up
        if window.plan.is_profiled and window.warm_up == 1 and not self._profiler.has_operators:
            self._observers.enter_context(self._profiler.operators())
        elif window.warm_up == 0 and window.meter is None:
            self._start_counting(window)
        self._step_started = running_s()

    def _end_step(self) -> None:
        window, started, self._step_started = self._window, self._step_started, None
        if window is None or started is None:
            return
        if window.warm_up > 0:
            window.warm_up -= 1
        else:
            window.steps_s.append(running_s() - started)
            window.passes_per_step.append(window.passes.count - sum(window.passes_per_step))
            self._profiler.rotate()
        if len(window.steps_s) >= window.plan.steps or self._may_end_early(window):
            self._window = None
            self._close(window)

    def _may_end_early(self, window: OpenWindow) -> bool:
        plan, steps = window.plan, len(window.steps_s)
        if isfinite(plan.abort_s) and steps >= ABORT_STEPS and window.is_slower_than(plan.abort_s):
            return True
        has_enough = isfinite(plan.enough_s) and steps >= plan.min_steps and sum(window.steps_s) >= plan.enough_s
        return has_enough and self._profiler.has_all_events

    def _apply(self, setting: Setting) -> None:
        self._applied.close()
        self._applied = ExitStack()
        knobs = {ThreadCount.name: ThreadCount(), **self._knobs, self._borrowed.name: self._borrowed}
        self._applied.enter_context(applied(setting, self._context, list(knobs.values())))
        self._setting = setting
        for name, value in self._differences(setting):
            self._changed.setdefault(name, value)

    def _start_counting(self, window: OpenWindow) -> None:
        window.meter = window.observers.enter_context(self._meter.window())
        if window.plan.is_profiled:
            already = len(window.steps_s)
            window.observers.enter_context(self._profiler.steps(lambda: len(window.steps_s) - already))
        if window.plan.is_profiled or (self._options.reduced and window.plan.phase is not Phase.PROBED):
            window.observers.enter_context(window.passes.recorded())
        self._synchronize()
        window.started_at = window.started_at or time.time()
        window.neighbors = self._neighbors or StatLoad((*self._context.cores, *self._borrowed.cores))
        window.started, window.others_started = running_s(), window.neighbors.others_s()
        window.paused_started = paused_s()

    def _close(self, window: OpenWindow) -> None:
        """Record a finished window and plan the next one."""
        self._pause(window)
        is_first = window.plan.is_profiled and self._rules.train_networks
        if is_first and (not self._profiler.has_operators or window.has_steps_without_backward):
            self._refuse(FETCHES_AHEAD)
            return
        phase, measured = window.plan.phase, self._record(window)
        self._planner.observe(measured)
        if self._planner.plan.phase is Phase.PROBED and phase is not Phase.PROBED:
            self._context.quietest_cores = ()  # determined again when they are needed

    def _record(self, window: OpenWindow) -> WindowMeasurement:
        """Record a window that is paused for good; return what it measured."""
        steps = len(window.steps_s)
        # An accelerator works asynchronously, so only the window as a whole can be timed.
        step_s = window.step_s if self._context.device.type == "cpu" else window.counted_s / steps
        # A meter with a low sampling rate measures nothing in a short window.
        step_j = window.joules / steps if window.joules else None
        phase, setting = window.plan.phase, Config(window.setting)
        self._windows.append(
            StepWindow(phase, setting, steps, step_s, step_j, window.source, window.started_at, window.load)
        )
        lent = int(window.setting.get(self._borrowed.name) or 0)
        return WindowMeasurement(step_s, step_j, steps, window.passes.losses, window.load, lent)

    def _pause(self, window: OpenWindow) -> None:
        """Stop counting at the end of a window or of an epoch."""
        if window.meter is not None:
            self._synchronize()
            window.counted_s += running_s() - window.started
            was_paused = paused_s() != window.paused_started  # others had the cores meanwhile
            if window.neighbors is not None and not was_paused:
                window.others_s += window.neighbors.others_s() - window.others_started
        window.observers.close()
        if window.meter is not None:
            energy = window.meter.measurement.energy
            window.joules, window.source = window.joules + (energy.joules or 0.0), energy.source
            window.meter = None

    def _synchronize(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)

    def _refuse(self, reason: str) -> None:
        """Keep the default knobs in a loop that cannot be tuned."""
        self.restore()
        self._untunable, self._window = reason, None
        self._planner.notes.append(f"{reason}: the knobs keep their defaults")

    # Knobs with which the network does not run, or does not compute the same.

    def _untested(self, setting: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the changed knobs that may fail and were not tested yet."""
        return [
            (name, value)
            for name, value in self._differences(setting)
            if self._knobs[name].may_fail and (name, value) not in self._safe and name not in self._planner.unsafe
        ]

    def _tested(self, setting: Setting) -> Setting:
        """Return the setting with the defaults of all knobs with which the network does not run."""
        for name, value in self._untested(setting):
            if not self._call.is_known:
                self._planner.reject(
                    name, f"{name} {value} cannot be tested: the loop does not call the network itself"
                )
            elif not runs(self._call, self._context, self._knobs[name], value):
                self._planner.reject(name, f"the network does not run with {name} {value}")
            elif self._has_small_error(name, value):
                self._safe.add((name, value))
        return self._planner.safe(setting)

    def _check_precision(self) -> None:
        """Compare reduced with full precision again from time to time."""
        reduced = [(name, value) for name, value in self._differences(self._setting) if name in PRECISION_KNOBS]
        if not reduced or self._setting.get("compile", "eager") != "eager":  # a hook would compile the network again
            return
        self._unchecked_steps += 1
        if self._unchecked_steps == PRECISION_CHECK_STEPS:
            self._observers.enter_context(self._call.recorded())
        elif self._unchecked_steps > PRECISION_CHECK_STEPS:
            if self._window is not None:
                self._pause(self._window)
            self._apply(self._planner.available.defaults)
            for name, value in reduced:
                self._has_small_error(name, value)

    def _has_small_error(self, name: str, value: Any) -> bool:
        """Return whether a knob changes the outputs of the network little; reject it if it does not."""
        if name not in PRECISION_KNOBS:
            return True
        self._unchecked_steps = 0
        error = output_error(self._call, self._context, self._knobs[name], value)
        if error <= MAX_OUTPUT_ERROR:
            return True
        self._planner.reject(
            name, f"{name} {value} changes the outputs by {error:.0%} of their variation and was rejected"
        )
        return False

    def _suspects(self, error: Exception) -> list[tuple[str, Any]]:
        only = PRECISION_KNOBS if isinstance(error, NotANumber) else set(self._changed)
        return [(name, value) for name, value in self._changed.items() if name in only]

    def _differences(self, setting: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the knobs of a setting that are available and differ from their defaults."""
        defaults = self._planner.available.defaults
        return [(name, value) for name, value in setting.items() if name in defaults and defaults[name] != value]

    def _available(self, max_setup_s: float = 0.0) -> AvailableKnobs:
        excluded = dict.fromkeys(self._given_up, "an epoch failed with it")
        named = self._options.options
        if self._options.probing == "few":
            excluded |= dict.fromkeys(
                (LIMITS & set(self._knobs)) - set(named), "a limit makes nothing faster; grid and halving probe it"
            )
        knobs = [knob for name, knob in self._knobs.items() if name not in excluded]
        reduced = self._options.reduced or not PRECISION_KNOBS.isdisjoint(named)
        available = available_knobs(self._context, reduced=reduced, max_setup_s=max_setup_s, knobs=knobs)
        available = AvailableKnobs(available.options, {**available.unavailable, **excluded})
        if not named:
            return available
        available = narrowed(available, named)
        reason = why_nothing_acts(available, named)
        if reason and not self._given_up:
            raise SpaceError(reason)
        return available

    def _applies(self, memory: KnobMemory) -> bool:
        expected = (self._machine, self._options.optimize_for, self._options.reduced)
        return (memory.machine, memory.aim, memory.reduced) == expected
