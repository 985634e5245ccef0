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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median
from typing import Any

import torch

from onefold.meter import Meter
from onefold.meter.meter import Window as MeterWindow
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import TrainingState
from onefold.training.fixed_knobs import ConfiguredKnobs, DefaultKnobs
from onefold.training.job_clusters import Clusterer, kmeans_labels, open_clusterer
from onefold.training.job_profile import Profiler
from onefold.training.knob_memory import SimilarJobs
from onefold.training.knob_planner import KnobPlan, KnobPlanner, WindowMeasurement
from onefold.training.knob_search import Setting
from onefold.training.knobs import TrainingContext, applied, available_knobs
from onefold.training.knobs.catalog import PRECISION_KNOBS, runs_with
from onefold.training.knobs.processor import available_cores, machine_description
from onefold.training.losses import record_losses
from onefold.training.splits import LoaderSettings
from onefold.vocabulary.errors import NotANumber
from onefold.vocabulary.knobs import (
    KNOB_PREFIX,
    KnobMemory,
    KnobOptions,
    KnobRecord,
    Phase,
    SettledKnobs,
    StepWindow,
)
from onefold.vocabulary.records import Config, Epoch

WARM_UP = 1  # steps after a change of knobs that are not counted
FIRST_WARM_UP = 3  # and at the start of training
SHORT_EPOCH = 2  # epochs with this many steps or fewer have no warm-up
ABORT_STEPS = 2  # slow steps after which a candidate is aborted
MAX_WINDOWS = 60  # in the record of an epoch; more are merged
MAX_SETUP_SHARE = 0.03  # of the remaining time that changing one knob may take


@dataclass
class _OpenWindow:
    """The current window."""

    plan: KnobPlan
    warm_up: int  # remaining steps that are not counted
    steps_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    counted_s: float = 0.0
    joules: float = 0.0
    source: str = "unavailable"  # of the joules
    started: float = 0.0  # when counting started
    meter: MeterWindow | None = None  # while it counts
    observers: ExitStack = field(default_factory=ExitStack)


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
    ) -> None:
        self._context = context
        self._options = options
        self._meter = meter
        self._machine = machine
        self._profiler = Profiler()
        self._planner = KnobPlanner(
            options,
            available_knobs(context, reduced=options.reduced),
            machine,
            SimilarJobs([memory for memory in remembered if self._applies(memory)], clusterer),
            self._profiler,
            settled if settled is not None and settled.machine == machine else None,
        )
        self._applied = ExitStack()
        self._setting: Setting = {}  # the knobs that are applied
        self._window: _OpenWindow | None = None
        self._step_started: float | None = None
        self._epochs = 0
        self._steps = 0  # of the current or latest epoch
        self._warm_up = WARM_UP
        self._changed: set[str] = set()  # knobs that differed from their defaults in this epoch
        self._safe: set[tuple[str, Any]] = set()  # values with which the network runs
        self._thread = threading.get_ident()
        self._windows: list[StepWindow] = []
        self._has_reported_profile = False

    @property
    def settled(self) -> SettledKnobs | None:
        """Return the knobs that were settled on; None before."""
        return self._planner.settled

    def may_have_caused(self, error: Exception) -> bool:
        """Return whether a changed knob may have caused an epoch to fail."""
        return bool(self._changed & PRECISION_KNOBS if isinstance(error, NotANumber) else self._changed)

    @property
    def affects_evaluation(self) -> bool:
        """Return whether `for_evaluation` changes any knob."""
        defaults = self._planner.available.defaults
        return any(defaults.get(name) != value for name, value in self._evaluation_setting.items())

    def disabled(self, reason: str) -> DefaultKnobs:
        """Restore the defaults, and return the stand-in that keeps them in this and all later rungs."""
        self.restore()
        return DefaultKnobs(reason, SettledKnobs(self._machine, Config(), Phase.FOUND))

    def tuned(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch and change knobs between them."""
        self.restore()
        self._changed.clear()
        self._epochs = epoch = self._epochs + 1
        if threading.get_ident() != self._thread:  # batches fetched by another thread do not delimit steps
            yield from batches
            return
        steps, self._steps = self._steps, 0
        self._warm_up = WARM_UP if steps > SHORT_EPOCH or epoch == 1 else 0
        try:
            for batch in batches:
                self._end_step()
                self._start_step(batch)
                self._steps += 1
                yield self._context.adapt(batch)
                self._end_operators()
            self._end_step()
        finally:
            if epoch == self._epochs:  # not for an abandoned generator that is only now collected
                self.restore()

    @contextmanager
    def for_evaluation(self) -> Iterator[None]:
        """Set the settled knobs for the block, except those of precision."""
        with applied(self._evaluation_setting, self._context):
            yield

    def restore(self) -> None:
        """Restore the defaults. The next epoch continues the current window."""
        self._step_started = None
        if self._window is not None:
            self._pause(self._window)
        self._applied.close()
        self._applied, self._setting = ExitStack(), {}

    def expect(self, remaining_s: float) -> None:
        """Make the knobs available whose slow change is worth it in the remaining training time."""
        max_setup_s = MAX_SETUP_SHARE * remaining_s
        self._planner.extend(available_knobs(self._context, reduced=self._options.reduced, max_setup_s=max_setup_s))

    def report(self, epoch: Epoch) -> KnobRecord:
        """Return what happened since the last report as the record of this epoch."""
        planner = self._planner
        record = KnobRecord(
            epoch.trial, epoch.rung, epoch.number,
            windows=tuple(_merged(self._windows) if len(self._windows) > MAX_WINDOWS else self._windows),
            profile=None if self._has_reported_profile else planner.profile,
            learned=planner.learned,
            notes=tuple(planner.notes),
            missing=planner.available.unavailable,
        )  # fmt: skip
        self._has_reported_profile = planner.profile is not None
        self._windows, planner.notes, planner.learned = [], [], None
        return record

    # Windows: the cost of steps with one setting.

    def _start_step(self, batch: Any) -> None:
        if self._window is None:
            plan = self._without_unsafe(self._planner.plan, batch)
            self._window = _OpenWindow(plan, warm_up=FIRST_WARM_UP - WARM_UP if plan.is_profiled else 0)
        window = self._window
        if window.plan.setting != self._setting:
            self._apply(window.plan.setting)
            window.warm_up += self._warm_up
        if window.plan.is_profiled and window.warm_up == 1 and not self._profiler.has_operators:
            window.observers.enter_context(self._profiler.operators())
        elif window.warm_up == 0 and window.meter is None:
            self._start_counting(window)
        self._step_started = time.perf_counter()

    def _end_operators(self) -> None:
        """Stop profiling operators before the next batch is fetched: profiles describe networks, not data."""
        if self._window is not None and self._window.meter is None:
            self._window.observers.close()

    def _end_step(self) -> None:
        window, started, self._step_started = self._window, self._step_started, None
        if window is None or started is None:
            return
        if window.warm_up > 0:
            window.warm_up -= 1
        else:
            window.steps_s.append(time.perf_counter() - started)
        is_too_slow = len(window.steps_s) >= ABORT_STEPS and min(window.steps_s) > window.plan.abort_s
        if len(window.steps_s) >= window.plan.steps or is_too_slow:
            self._window = None
            self._close(window)

    def _apply(self, setting: Setting) -> None:
        self._applied.close()
        self._applied = ExitStack()
        self._applied.enter_context(applied(setting, self._context))
        self._setting = setting
        defaults = self._planner.available.defaults
        self._changed |= {name for name, value in setting.items() if defaults.get(name) != value}

    def _start_counting(self, window: _OpenWindow) -> None:
        window.meter = window.observers.enter_context(self._meter.window())
        if window.plan.is_profiled:
            already = len(window.steps_s)
            window.observers.enter_context(self._profiler.steps(lambda: len(window.steps_s) - already))
        if self._options.reduced and window.plan.phase in (Phase.FOUND, Phase.PROBED):
            window.observers.enter_context(record_losses(window.losses))
        self._synchronize()
        window.started = time.perf_counter()

    def _close(self, window: _OpenWindow) -> None:
        """Record a finished window and plan the next one."""
        self._pause(window)
        steps = len(window.steps_s)
        # An accelerator works asynchronously, so only the window as a whole can be timed.
        step_s = median(window.steps_s) if self._context.device.type == "cpu" else window.counted_s / steps
        # A meter with a low sampling rate measures nothing in a short window.
        step_j = window.joules / steps if window.joules else None
        setting = Config(window.plan.setting)
        self._windows.append(StepWindow(window.plan.phase, setting, steps, step_s, step_j, window.source))
        self._planner.observe(WindowMeasurement(step_s, step_j, window.losses, steps))

    def _pause(self, window: _OpenWindow) -> None:
        """Stop counting at the end of a window or of an epoch."""
        if window.meter is not None:
            self._synchronize()
            window.counted_s += time.perf_counter() - window.started
        window.observers.close()
        if window.meter is not None:
            energy = window.meter.measurement.energy
            window.joules, window.source = window.joules + (energy.joules or 0.0), energy.source
            window.meter = None

    def _synchronize(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)

    def _without_unsafe(self, plan: KnobPlan, batch: Any) -> KnobPlan:
        """Return the plan with the defaults of all knobs with which the network does not run."""
        defaults, unsafe = self._planner.available.defaults, self._planner.unsafe
        for name, value in plan.setting.items():
            if defaults.get(name) == value or (name, value) in self._safe or name in unsafe:
                continue
            if runs_with(name, value, self._context, batch):
                self._safe.add((name, value))
            else:
                unsafe.add(name)
                self._planner.notes.append(f"the network does not run with {name} {value}")
        setting = {name: defaults[name] if name in unsafe else value for name, value in plan.setting.items()}
        return replace(plan, setting=setting)

    @property
    def _evaluation_setting(self) -> Setting:
        settled = self.settled.setting if self.settled is not None else {}
        return {name: value for name, value in settled.items() if name not in PRECISION_KNOBS}

    def _applies(self, memory: KnobMemory) -> bool:
        expected = (self._machine, self._options.optimize_for, self._options.reduced)
        return (memory.machine, memory.aim, memory.reduced) == expected


def _merged(windows: Sequence[StepWindow]) -> Iterator[StepWindow]:
    """Yield the windows with consecutive ones of the same phase and setting merged."""
    for _, group in groupby(windows, key=lambda window: (window.phase, window.knobs)):
        members = list(group)
        steps = sum(window.steps for window in members)
        metered = [window for window in members if window.step_j is not None]
        joules = sum(window.steps * (window.step_j or 0.0) for window in metered)
        yield replace(
            members[0],
            steps=steps,
            step_s=sum(window.steps * window.step_s for window in members) / steps,
            step_j=joules / sum(window.steps for window in metered) if metered else None,
        )


def open_session(
    assignment: Assignment, state: TrainingState, meter: Meter, device: torch.device, loader: LoaderSettings | None
) -> KnobSession | DefaultKnobs:
    """Return the tuning session of an assignment, or its stand-in if its knobs are fixed."""
    context = TrainingContext(state.model, state.optimizer, device, available_cores(), loader)
    configured = {
        name.removeprefix(KNOB_PREFIX): value
        for name, value in assignment.config.items()
        if name.startswith(KNOB_PREFIX)
    }
    if configured:
        return ConfiguredKnobs(context, configured)
    if assignment.knobs.mode == "off":
        return DefaultKnobs()
    return KnobSession(
        context,
        assignment.knobs,
        meter=meter,
        machine=machine_description(context),
        remembered=assignment.remembered,
        settled=state.settled,
        clusterer=open_clusterer(assignment.knobs.similarity),
    )
