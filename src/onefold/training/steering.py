"""Knobs turned while a trial trains: which ones for the next window of steps, and what they came to.

steering = Steering(job, wish, meter=meter, machine=machine, remembered=remembered)
for batch in steering.steered(batches): ...         # in every epoch
with steering.at_rest(): ...                        # between them: the settled knobs, in full precision
steering.report(epoch)                              # the windows since the last report, and what was learned

SGD repeats itself: a few steps tell what the next thousand will cost. The first window shows the knobs as they stand
and makes a profile. A job that is known gets the knobs of the one like it; otherwise one candidate after the other gets
a window of its own. From then on the time of a step is watched, and when it drifts, what depends on the neighbours of
this process is probed again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median
from typing import Any

import torch

from onefold.errors import NotANumber
from onefold.knobs import AS_PARAMETER, KnobWish, Phase, Profile, Remembered, Settled, Steered, StepWindow
from onefold.meter import Meter
from onefold.meter.meter import Window as MeterWindow
from onefold.records import Config, Epoch
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import Progress
from onefold.training.knobs import Job, Offer, catalogue, turned
from onefold.training.knobs.catalogue import REDUCING, runs_with
from onefold.training.knobs.processor import cores_here, machine_of
from onefold.training.losses import are_as_good, seen_losses
from onefold.training.probing import PROBINGS, Options, Setting
from onefold.training.profiling import Profiler
from onefold.training.recall import Clusterer, Recall, clusterer
from onefold.training.unsteered import Chosen, Untouched

WARM_UP = 1  # steps after a knob was turned that are not counted
FIRST = 5  # and at the very beginning
LEAST, MOST = 5, {"time": 50, "energy": 1000}  # steps of a window
SHORT = 2  # epochs of so few steps have none to spare for warming up
HOPELESS = 2  # steps, each twice as long as it took before, are enough to give a candidate up
WINDOW_S = {"time": 0.05, "energy": 0.4}  # how long one lasts at the least, by aim
WATCHED = 4  # times as long is a window in which nothing is tried
DRIFT = 1.3  # a step that takes so much more or less of its time is no chance
DRIFTED = 2  # windows in a row
NEIGHBOURLY = ("threads", "cores")  # what is best for these depends on who else uses the machine
EVASIVE = "cores"  # worth trying only once a neighbour has come
MANY = 60  # windows of an epoch are told one by one; more are joined
PATIENCE = 0.03  # of the time that is left may be spent on turning one knob


@dataclass(frozen=True, slots=True)
class _Plan:
    """The next window."""

    phase: Phase
    setting: Setting
    steps: int
    look: bool = False  # whether to make a profile
    hopeless_s: float = math.inf  # a step that takes longer shows enough


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a window showed."""

    step_s: float
    step_j: float | None
    losses: list[float]


@dataclass
class _Window:
    """The window under way."""

    plan: _Plan
    skip: int  # steps to come that are not counted
    steps_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    counted_s: float = 0.0
    joules: float = 0.0
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
        self._recall = Recall([one for one in remembered if self._is_ours(one)], clusterer)
        self._offer: Offer = catalogue(job, reduced=wish.reduced)
        self._turned = ExitStack()
        self._setting: Setting = {}  # as the knobs stand
        self._window: _Window | None = None
        self._step_began: float | None = None
        self._epochs = 0
        self._steps = 0  # of the epoch under way, or the last one
        self._warm_up = WARM_UP
        self._touched: set[str] = set()  # knobs that stood otherwise than found in this epoch
        self._safe: set[tuple[str, Any]] = set()
        self._unsafe: set[str] = set()  # knobs that the network does not run with
        self._profiler = Profiler()
        self._profile: Profile | None = None
        self._learned: Remembered | None = None
        self._before = math.inf  # what a step costs with the knobs as they were found, at best
        self._in_joules = wish.aim == "energy"
        self._seen_profile: Profile | None = None
        self._thread = threading.get_ident()
        self._windows: list[StepWindow] = []
        self._notes: list[str] = []
        self._slow: Options = {}  # knobs that take long to turn, to be tried once
        self.settled = settled if settled is not None and settled.machine == machine else None
        self._conductor = self._conduct(self.settled)
        self._plan = next(self._conductor)

    def is_to_blame(self, error: Exception) -> bool:
        """Whether an epoch may have failed because a knob stood otherwise than it was found."""
        return bool(self._touched & REDUCING if isinstance(error, NotANumber) else self._touched)

    @property
    def is_turned_at_rest(self) -> bool:
        """Whether scoring happens with any knob turned."""
        chosen = self.settled.setting if self.settled is not None else {}
        return any(self._offer.found.get(name) != value for name, value in chosen.items() if name not in REDUCING)

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
        offer = catalogue(self._job, reduced=self._wish.reduced, patience_s=PATIENCE * left_s)
        new = {name: options for name, options in offer.knobs.items() if name not in self._offer.knobs}
        self._slow = {**self._slow, **new}
        self._offer = Offer({**self._offer.knobs, **new}, offer.missing)

    def report(self, epoch: Epoch) -> Steered:
        """What happened since the last report, told as part of this epoch."""
        told = Steered(
            epoch.trial, epoch.rung, epoch.number,
            windows=tuple(_joined(self._windows) if len(self._windows) > MANY else self._windows),
            profile=self._profile,
            learned=self._learned,
            notes=tuple(self._notes),
            missing=self._offer.missing,
        )  # fmt: skip
        self._windows, self._notes, self._profile, self._learned = [], [], None, None
        return told

    # Windows: what the steps of one setting cost.

    def _step_begins(self, batch: Any) -> None:
        if self._window is None:
            plan = self._rehearsed(self._plan, batch)
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
        self._touched |= {name for name, value in setting.items() if self._offer.found.get(name) != value}

    def _count_from_here(self, window: _Window) -> None:
        window.watchers.close()  # the operators have been seen
        window.meter = window.watchers.enter_context(self._meter.window())
        if window.plan.look:
            already = len(window.steps_s)
            window.watchers.enter_context(self._profiler.steps(lambda: len(window.steps_s) - already))
        if self._wish.reduced and window.plan.phase is Phase.PROBED:
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
        self._windows.append(StepWindow(window.plan.phase, Config(window.plan.setting), steps, step_s, step_j))
        self._plan = self._conductor.send(_Seen(step_s, step_j, window.losses))

    def _pause(self, window: _Window) -> None:
        """Stops counting, at the end of a window or of an epoch."""
        if window.meter is not None:
            self._wait_for_accelerator()
            window.counted_s += time.perf_counter() - window.began
        window.watchers.close()
        if window.meter is not None:
            window.joules += window.meter.measurement.energy.joules or 0.0
            window.meter = None

    def _wait_for_accelerator(self) -> None:
        if self._job.device.type == "cuda":
            torch.cuda.synchronize(self._job.device)

    def _rehearsed(self, plan: _Plan, batch: Any) -> _Plan:
        """The plan without the knobs that the network turns out not to run with."""
        found = self._offer.found
        for name, value in plan.setting.items():
            if found.get(name) == value or (name, value) in self._safe or name in self._unsafe:
                continue
            if runs_with(name, value, self._job, batch):
                self._safe.add((name, value))
            else:
                self._unsafe.add(name)
                self._notes.append(f"the network does not run with {name} {value}")
        setting = {name: found[name] if name in self._unsafe else value for name, value in plan.setting.items()}
        return replace(plan, setting=setting)

    # The conductor: which window comes next.

    def _conduct(self, settled: Settled | None) -> Generator[_Plan, _Seen, None]:
        found = self._offer.found
        if settled is not None:
            setting = self._known(settled.setting)
            seen = yield self._planned(settled.phase, setting, 0.0)
            yield from self._watch(setting, settled.phase, seen)
        seen = yield _Plan(Phase.FOUND, found, LEAST, look=True)
        self._profile = self._seen_profile = self._profiler.profile
        like = self._recall.like(self._seen_profile) if self._wish.mode in ("on", "recall") else None
        if like is not None:
            setting = self._known(like.remembered.knobs)
            self._notes.append(
                f"recalled from a similar job (confidence {like.confidence:.2f}): {_words(setting, found)}"
            )
            now = yield self._planned(Phase.RECALLED, setting, seen.step_s)
            if setting == found or now.step_s < seen.step_s or self._wish.mode == "recall":
                self.settled = Settled(self._machine, Config(setting), Phase.RECALLED)
                yield from self._watch(setting, Phase.RECALLED, now)
            self._notes.append("what was recalled is no faster here: probing")
        elif self._wish.mode == "recall":
            self._notes.append("no similar job is known: the knobs stay as they are")
            yield from self._watch(found, Phase.FOUND, seen)
        knobs = {name: options for name, options in self._offer.knobs.items() if name != EVASIVE}
        setting = yield from self._probe(knobs, found, seen.step_s)
        now = yield from self._settle(setting, Phase.SETTLED, seen.step_s)
        yield from self._watch(setting, Phase.SETTLED, now)

    def _settle(self, setting: Setting, phase: Phase, step_s: float) -> Generator[_Plan, _Seen, _Seen]:
        """The first window with what was found by probing, which is remembered."""
        self.settled = Settled(self._machine, Config(setting), phase)
        seen = yield self._planned(phase, setting, step_s)
        if self._seen_profile is not None and self._profiler.has_operators and self._before < math.inf:
            self._learned = Remembered(
                self._machine, self._wish.aim, self._wish.reduced, self._seen_profile, Config(setting),
                self._before, self._cost(seen),
            )  # fmt: skip
        return seen

    def _probe(self, knobs: Options, start: Setting, step_s: float) -> Generator[_Plan, _Seen, Setting]:
        """One candidate per window, from `start`, with which a step took so long; the best one in the end."""
        proposals = PROBINGS[self._wish.probing](knobs)
        losses: list[tuple[bool, list[float]]] = []  # of each window, and whether it had less precision
        tried, seen = 0, None
        self._before = math.inf
        while True:
            try:
                candidate = next(proposals) if seen is None else proposals.send(self._cost(seen))
            except StopIteration as end:
                best: Setting = {**start, **end.value}
                break
            plan = self._planned(Phase.PROBED, {**start, **candidate}, step_s)
            seen = yield replace(plan, hopeless_s=2 * step_s)
            losses.append((self._reduces({**start, **candidate}), seen.losses))
            if tried == 0 and self._wish.aim == "energy" and seen.step_j is None:
                self._in_joules = False
                self._notes.append("no energy is known of windows so short: the knobs are tuned for time")
            if self._stands_as_found({**start, **candidate}, knobs):
                self._before = min(self._before, self._cost(seen))
            tried += 1
        found = self._offer.found
        if REDUCING & set(knobs) and self._reduces(best) and not are_as_good(*_beside_each_other(losses)):
            best = {name: found[name] if name in REDUCING else value for name, value in best.items()}
            self._notes.append("reduced precision raised the loss and was not kept")
        best = {name: found[name] if name in self._unsafe else value for name, value in best.items()}
        self._notes.append(f"probed {tried} windows of steps: {_words(best, found)}")
        return best

    def _stands_as_found(self, setting: Setting, knobs: Options) -> bool:
        return all(setting.get(name) == self._offer.found.get(name) for name in knobs)

    def _watch(self, setting: Setting, phase: Phase, seen: _Seen) -> Generator[_Plan, _Seen, None]:
        usual, off, rest, waited = seen.step_s, 0, DRIFTED, 0
        while True:
            seen = yield self._planned(phase, setting, seen.step_s, watched=True)
            waited += 1
            factor = seen.step_s / usual
            off = off + 1 if max(factor, 1 / factor) > DRIFT else 0
            if self._slow and self._wish.mode != "recall":
                slow, self._slow = self._slow, {}
                setting = yield from self._probe(slow, setting, seen.step_s)
                seen = yield from self._settle(setting, phase, seen.step_s)
                usual, off = seen.step_s, 0
            elif off >= DRIFTED and waited >= rest and self._wish.mode != "recall" and self._neighbourly(setting):
                self._notes.append(f"a step takes {factor:.2g}x the time it took: probing again")
                before = setting
                setting = yield from self._probe(self._neighbourly(setting), setting, seen.step_s)
                self.settled = Settled(self._machine, Config(setting), phase)
                seen = yield self._planned(phase, setting, seen.step_s)
                usual, off, waited = seen.step_s, 0, 0
                rest = DRIFTED if setting != before else min(64, 2 * rest)

    def _neighbourly(self, setting: Setting) -> Options:
        """The knobs to probe when neighbours have come or gone, how they stand now first."""
        knobs = {name: options for name, options in self._offer.knobs.items() if name in NEIGHBOURLY}
        return {
            name: tuple(dict.fromkeys([setting.get(name, options[0]), *options])) for name, options in knobs.items()
        }

    def _planned(self, phase: Phase, setting: Setting, step_s: float, *, watched: bool = False) -> _Plan:
        least = math.ceil(WINDOW_S[self._wish.aim] / step_s) if step_s > 0 else LEAST
        steps = min(max(least, LEAST), MOST[self._wish.aim])
        return _Plan(phase, setting, steps * WATCHED if watched else steps)

    def _known(self, knobs: Mapping[str, Any]) -> Setting:
        """What is remembered, as far as it can be turned here."""
        offered = self._offer.knobs
        return {
            name: knobs[name] if name in knobs and knobs[name] in options else options[0]
            for name, options in offered.items()
        }

    def _cost(self, seen: _Seen) -> float:
        """What counts: joules or seconds, the same for all windows of a probing."""
        if not self._in_joules:
            return seen.step_s
        return seen.step_j if seen.step_j is not None else math.inf

    def _reduces(self, setting: Mapping[str, Any]) -> bool:
        return any(name in REDUCING and value != self._offer.found.get(name) for name, value in setting.items())

    def _is_ours(self, one: Remembered) -> bool:
        return (one.machine, one.aim, one.reduced) == (self._machine, self._wish.aim, self._wish.reduced)


def _beside_each_other(losses: Sequence[tuple[bool, list[float]]]) -> tuple[list[float], list[float]]:
    """The losses of the last window with less precision, and of the exact ones right before and after it.

    Losses fall while they are compared, so the exact ones must be as early as they are late.
    """
    last = max(place for place, (reduced, _) in enumerate(losses) if reduced)
    before = next((seen for reduced, seen in reversed(losses[:last]) if not reduced), [])
    after = next((seen for reduced, seen in losses[last:] if not reduced), [])
    return losses[last][1], before + after


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


def _words(setting: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    told = [f"{name} {value}" for name, value in setting.items() if found.get(name) != value]
    return ", ".join(told) if told else "what was found is best"


def steer(work: Assignment, progress: Progress, meter: Meter, device: torch.device) -> Steering | Untouched:
    """The steering of a visit, as its study wants it."""
    job = Job(progress.model, progress.optimizer, device, cores_here())
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
