"""Knobs turned while a trial trains: which ones for the next window of steps, and what they came to.

steering = Steering(job, wish, meter=meter, machine=machine, remembered=remembered)
for batch in steering.steered(batches): ...         # in every epoch
with steering.at_rest(): ...                        # between them: the settled knobs, in full precision
steering.report(epoch)                              # the windows since the last report, and what was learned

SGD repeats itself: a few steps tell what the next thousand will cost. The first window shows the knobs as they stand
and makes a profile; which ones come then is the conductor's to say.
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
from onefold.training.checkpoint import Progress
from onefold.training.fixed_knobs import Chosen, Untouched
from onefold.training.knob_memory import Clusterer, Recall, clusterer
from onefold.training.knob_planner import Conductor, Plan, Seen
from onefold.training.knobs import Job, catalogue, turned
from onefold.training.knobs.catalogue import REDUCING, runs_with
from onefold.training.knobs.processor import cores_here, machine_of
from onefold.training.losses import seen_losses
from onefold.training.probing import Setting
from onefold.training.profiling import Profiler
from onefold.training.splits import Loading
from onefold.vocabulary.errors import NotANumber
from onefold.vocabulary.knobs import AS_PARAMETER, KnobWish, Phase, Remembered, Settled, Steered, StepWindow
from onefold.vocabulary.records import Config, Epoch

WARM_UP = 1  # steps after a knob was turned that are not counted
FIRST = 3  # and at the very beginning
SHORT = 2  # epochs of so few steps have none to spare for warming up
HOPELESS = 2  # steps, each twice as long as it took before, are enough to give a candidate up
MANY = 60  # windows of an epoch are told one by one; more are joined
PATIENCE = 0.03  # of the time that is left may be spent on turning one knob


@dataclass
class _Window:
    """The window under way."""

    plan: Plan
    skip: int  # steps to come that are not counted
    steps_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    counted_s: float = 0.0
    joules: float = 0.0
    source: str = "unavailable"  # of the joules
    began: float = 0.0  # to count
    meter: MeterWindow | None = None  # while it counts
    watchers: ExitStack = field(default_factory=ExitStack)


class Steering:
    """Turns the knobs of one visit of a trial."""

    def __init__(
        self,
        job: Job,
        wish: KnobWish,
        *,
        meter: Meter,
        machine: str,
        remembered: Sequence[Remembered] = (),
        settled: Settled | None = None,
        clusterer: Clusterer | None = None,
    ) -> None:
        self._job = job
        self._wish = wish
        self._meter = meter
        self._machine = machine
        self._profiler = Profiler()
        self._conductor = Conductor(
            wish,
            catalogue(job, reduced=wish.reduced),
            machine,
            Recall([one for one in remembered if self._is_ours(one)], clusterer),
            self._profiler,
            settled if settled is not None and settled.machine == machine else None,
        )
        self._turned = ExitStack()
        self._setting: Setting = {}  # as the knobs stand
        self._window: _Window | None = None
        self._step_began: float | None = None
        self._epochs = 0
        self._steps = 0  # of the epoch under way, or the last one
        self._warm_up = WARM_UP
        self._touched: set[str] = set()  # knobs that stood otherwise than found in this epoch
        self._safe: set[tuple[str, Any]] = set()
        self._thread = threading.get_ident()
        self._windows: list[StepWindow] = []
        self._told_profile = False

    @property
    def settled(self) -> Settled | None:
        """The knobs it was left with so far."""
        return self._conductor.settled

    def is_to_blame(self, error: Exception) -> bool:
        """Whether an epoch may have failed because a knob stood otherwise than it was found."""
        return bool(self._touched & REDUCING if isinstance(error, NotANumber) else self._touched)

    @property
    def is_turned_at_rest(self) -> bool:
        """Whether scoring happens with any knob turned."""
        chosen = self.settled.setting if self.settled is not None else {}
        return any(
            self._conductor.offer.found.get(name) != value for name, value in chosen.items() if name not in REDUCING
        )

    def given_up(self, why: str) -> Untouched:
        """What takes its place once it is to blame: knobs as they were found, here and in the rungs to come."""
        self.put_back()
        return Untouched(why, Settled(self._machine, Config(), Phase.FOUND))

    def steered(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of an epoch; knobs are turned between two of them."""
        self.put_back()
        self._touched.clear()
        self._epochs = epoch = self._epochs + 1
        if threading.get_ident() != self._thread:  # batches fetched ahead say nothing about steps
            yield from batches
            return
        steps, self._steps = self._steps, 0
        self._warm_up = WARM_UP if steps > SHORT or epoch == 1 else 0
        try:
            for batch in batches:
                self._step_ends()
                self._step_begins(batch)
                self._steps += 1
                yield self._job.adapted(batch)
            self._step_ends()
        finally:
            if epoch == self._epochs:  # and not one that nobody read to its end, and that is cleared away only now
                self.put_back()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """The settled knobs for what is not training, such as scoring, but never with less precision."""
        chosen = self.settled.setting if self.settled is not None else {}
        with turned({name: value for name, value in chosen.items() if name not in REDUCING}, self._job):
            yield

    def put_back(self) -> None:
        """Puts every knob back to what was found. The next epoch goes on with the window under way."""
        self._step_began = None
        if self._window is not None:
            self._pause(self._window)
        self._turned.close()
        self._turned, self._setting = ExitStack(), {}

    def expect(self, left_s: float) -> None:
        """Says about how long the training that is left will take: knobs that are slow to turn may be worth it now."""
        self._conductor.extend(catalogue(self._job, reduced=self._wish.reduced, patience_s=PATIENCE * left_s))

    def report(self, epoch: Epoch) -> Steered:
        """What happened since the last report, told as part of this epoch."""
        conductor = self._conductor
        told = Steered(
            epoch.trial, epoch.rung, epoch.number,
            windows=tuple(_joined(self._windows) if len(self._windows) > MANY else self._windows),
            profile=None if self._told_profile else conductor.profile,
            learned=conductor.learned,
            notes=tuple(conductor.notes),
            missing=conductor.offer.missing,
        )  # fmt: skip
        self._told_profile = conductor.profile is not None
        self._windows, conductor.notes, conductor.learned = [], [], None
        return told

    # Windows: what the steps of one setting cost.

    def _step_begins(self, batch: Any) -> None:
        if self._window is None:
            plan = self._rehearsed(self._conductor.plan, batch)
            self._window = _Window(plan, skip=FIRST - WARM_UP if plan.look else 0)
        window = self._window
        if window.plan.setting != self._setting:
            self._turn(window.plan.setting)
            window.skip += self._warm_up
        if window.plan.look and window.skip == 1 and not self._profiler.has_operators:
            window.watchers.enter_context(self._profiler.operators())
        elif window.skip == 0 and window.meter is None:
            self._count_from_here(window)
        self._step_began = time.perf_counter()

    def _step_ends(self) -> None:
        window, began, self._step_began = self._window, self._step_began, None
        if window is None or began is None:
            return
        if window.skip > 0:
            window.skip -= 1
        else:
            window.steps_s.append(time.perf_counter() - began)
        hopeless = len(window.steps_s) >= HOPELESS and min(window.steps_s) > window.plan.hopeless_s
        if len(window.steps_s) >= window.plan.steps or hopeless:
            self._window = None
            self._close(window)

    def _turn(self, setting: Setting) -> None:
        self._turned.close()
        self._turned = ExitStack()
        self._turned.enter_context(turned(setting, self._job))
        self._setting = setting
        self._touched |= {name for name, value in setting.items() if self._conductor.offer.found.get(name) != value}

    def _count_from_here(self, window: _Window) -> None:
        window.watchers.close()  # the operators have been seen
        window.meter = window.watchers.enter_context(self._meter.window())
        if window.plan.look:
            already = len(window.steps_s)
            window.watchers.enter_context(self._profiler.steps(lambda: len(window.steps_s) - already))
        if self._wish.reduced and window.plan.phase in (Phase.FOUND, Phase.PROBED):
            window.watchers.enter_context(seen_losses(window.losses))
        self._wait_for_accelerator()
        window.began = time.perf_counter()

    def _close(self, window: _Window) -> None:
        """Writes a window down, and learns from it which one comes next."""
        self._pause(window)
        steps = len(window.steps_s)
        # An accelerator works behind the back of the clock: only the whole window can be timed there.
        step_s = median(window.steps_s) if self._job.device.type == "cpu" else window.counted_s / steps
        # A meter that ticks seldom has nothing to say of a short window.
        step_j = window.joules / steps if window.joules else None
        setting = Config(window.plan.setting)
        self._windows.append(StepWindow(window.plan.phase, setting, steps, step_s, step_j, window.source))
        self._conductor.showed(Seen(step_s, step_j, window.losses, steps))

    def _pause(self, window: _Window) -> None:
        """Stops counting, at the end of a window or of an epoch."""
        if window.meter is not None:
            self._wait_for_accelerator()
            window.counted_s += time.perf_counter() - window.began
        window.watchers.close()
        if window.meter is not None:
            energy = window.meter.measurement.energy
            window.joules, window.source = window.joules + (energy.joules or 0.0), energy.source
            window.meter = None

    def _wait_for_accelerator(self) -> None:
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)

    def _rehearsed(self, plan: Plan, batch: Any) -> Plan:
        """The plan without the knobs that the network turns out not to run with."""
        found = self._conductor.offer.found
        for name, value in plan.setting.items():
            if found.get(name) == value or (name, value) in self._safe or name in self._conductor.unsafe:
                continue
            if runs_with(name, value, self._job, batch):
                self._safe.add((name, value))
            else:
                self._conductor.unsafe.add(name)
                self._conductor.notes.append(f"the network does not run with {name} {value}")
        setting = {
            name: found[name] if name in self._conductor.unsafe else value for name, value in plan.setting.items()
        }
        return replace(plan, setting=setting)

    def _is_ours(self, one: Remembered) -> bool:
        return (one.machine, one.aim, one.reduced) == (self._machine, self._wish.aim, self._wish.reduced)


def _joined(windows: Sequence[StepWindow]) -> Iterator[StepWindow]:
    """The windows, with neighbours of one phase and setting taken together."""
    for _, same in groupby(windows, key=lambda window: (window.phase, window.knobs)):
        members = list(same)
        steps = sum(window.steps for window in members)
        known = [window for window in members if window.step_j is not None]
        yield replace(
            members[0],
            steps=steps,
            step_s=sum(window.steps * window.step_s for window in members) / steps,
            step_j=sum(w.steps * (w.step_j or 0.0) for w in known) / sum(w.steps for w in known) if known else None,
        )


def steer(
    work: Assignment, progress: Progress, meter: Meter, device: torch.device, loading: Loading | None
) -> Steering | Untouched:
    """The steering of a visit, as its study wants it."""
    job = Job(progress.model, progress.optimizer, device, cores_here(), loading)
    chosen = {
        name.removeprefix(AS_PARAMETER): value for name, value in work.config.items() if name.startswith(AS_PARAMETER)
    }
    if chosen:
        return Chosen(job, chosen)
    if work.knobs.mode == "off":
        return Untouched()
    return Steering(
        job,
        work.knobs,
        meter=meter,
        machine=machine_of(job),
        remembered=work.remembered,
        settled=progress.settled,
        clusterer=clusterer(work.knobs.similarity),
    )
