"""Which window of steps comes next: a job that is known gets the knobs of the one like it, others are probed.

conductor = Conductor(wish, offer, machine, recall, profiler, settled)
conductor.plan                      # the window to come
conductor.showed(seen)              # what it showed; there is another plan now

From then on the time of a step is watched, and when it drifts, what depends on the neighbours of this process is
probed again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onefold.training.knob_memory import Recall
from onefold.training.knobs import Offer
from onefold.training.knobs.catalogue import REDUCING
from onefold.training.losses import are_as_good
from onefold.training.probing import PROBINGS, Options, Setting
from onefold.training.profiling import Profiler
from onefold.vocabulary.knobs import KnobWish, Phase, Profile, Remembered, Settled
from onefold.vocabulary.records import Config

LEAST, MOST = 3, {"time": 50, "energy": 1000}  # steps of a window
LEAST_LOSSES = 8  # steps of a window that is to show what precision does to the loss
WINDOW_S = {"time": 0.1, "energy": 0.4}  # how long one lasts at the least, by aim
WATCHED = 4  # times as long is a window in which nothing is tried
DRIFT = 1.3  # a step that takes so much more or less of its time is no chance
DRIFTED = 2  # windows in a row
NEIGHBOURLY = ("threads", "cores")  # what is best for these depends on who else uses the machine
EVASIVE = "cores"  # worth trying only once a neighbour has come


@dataclass(frozen=True, slots=True)
class Plan:
    """The next window."""

    phase: Phase
    setting: Setting
    steps: int
    look: bool = False  # whether to make a profile
    hopeless_s: float = math.inf  # a step that takes longer shows enough


@dataclass(frozen=True, slots=True)
class Seen:
    """What a window showed."""

    step_s: float
    step_j: float | None
    losses: list[float]
    steps: int


class Conductor:
    """Plans the windows of one visit of a trial."""

    def __init__(
        self,
        wish: KnobWish,
        offer: Offer,
        machine: str,
        recall: Recall,
        profiler: Profiler,
        settled: Settled | None = None,
    ) -> None:
        self.offer = offer
        self.settled = settled
        self.unsafe: set[str] = set()  # knobs that the network turned out not to run with
        self.notes: list[str] = []  # what was decided and why
        self.profile: Profile | None = None
        self.learned: Remembered | None = None
        self._wish = wish
        self._machine = machine
        self._recall = recall
        self._profiler = profiler
        self._slow: Options = {}  # knobs that take long to turn, to be tried once
        self._before = math.inf  # what a step costs with the knobs as they were found, at best
        self._in_joules = wish.aim == "energy"
        self._windows = self._conduct(settled)
        self.plan = next(self._windows)

    def showed(self, seen: Seen) -> None:
        """Takes what the planned window showed, and plans the next one."""
        self.plan = self._windows.send(seen)

    def extend(self, offer: Offer) -> None:
        """Takes a larger offer: what is new in it takes long to turn, and is tried when nothing else is left."""
        new = {name: options for name, options in offer.knobs.items() if name not in self.offer.knobs}
        self._slow = {**self._slow, **new}
        self.offer = Offer({**self.offer.knobs, **new}, offer.missing)

    def _conduct(self, settled: Settled | None) -> Generator[Plan, Seen, None]:
        found = self.offer.found
        if settled is not None:
            setting = self._known(settled.setting)
            seen = yield self._planned(settled.phase, setting, 0.0)
            yield from self._watch(setting, settled.phase, seen)
        seen = yield Plan(Phase.FOUND, found, LEAST_LOSSES if self._wish.reduced else LEAST, look=True)
        self.profile = self._profiler.profile
        like = self._recall.like(self.profile) if self._wish.mode in ("on", "recall") else None
        if like is not None:
            setting = self._known(like.remembered.knobs)
            self.notes.append(
                f"recalled from a similar job (confidence {like.confidence:.2f}): {_words(setting, found)}"
            )
            now = yield self._planned(Phase.RECALLED, setting, seen.step_s)
            if setting == found or now.step_s < seen.step_s or self._wish.mode == "recall":
                self.settled = Settled(self._machine, Config(setting), Phase.RECALLED)
                yield from self._watch(setting, Phase.RECALLED, now)
            self.notes.append("what was recalled is no faster here: probing")
        elif self._wish.mode == "recall":
            self.notes.append("no similar job is known: the knobs stay as they are")
            yield from self._watch(found, Phase.FOUND, seen)
        knobs = {name: options for name, options in self.offer.knobs.items() if name != EVASIVE}
        setting = yield from self._probe(knobs, found, seen)
        now = yield from self._settle(setting, Phase.SETTLED, seen.step_s)
        yield from self._watch(setting, Phase.SETTLED, now)

    def _settle(self, setting: Setting, phase: Phase, step_s: float) -> Generator[Plan, Seen, Seen]:
        """The first window with what was found by probing, which is remembered."""
        self.settled = Settled(self._machine, Config(setting), phase)
        seen = yield self._planned(phase, setting, step_s)
        if self.profile is not None and self._profiler.has_operators and self._before < math.inf:
            self.learned = Remembered(
                self._machine, self._wish.aim, self._wish.reduced, self.profile, Config(setting),
                self._before, self._cost(seen),
            )  # fmt: skip
        return seen

    def _probe(self, knobs: Options, start: Setting, shown: Seen) -> Generator[Plan, Seen, Setting]:
        """One candidate per window, from `start`, which has shown this already; the best one in the end."""
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
            setting = {**start, **candidate}
            if seen is None and setting == start and self._was_long(shown):
                seen = shown
            else:
                plan = self._planned(Phase.PROBED, setting, shown.step_s)
                seen = yield replace(plan, hopeless_s=2 * shown.step_s)
                tried += 1
            losses.append((self._reduces(setting), seen.losses))
            if len(losses) == 1 and self._in_joules and seen.step_j is None:
                self._in_joules = False
                self.notes.append("no energy is known of windows so short: the knobs are tuned for time")
            if self._stands_as_found(setting, knobs):
                self._before = min(self._before, self._cost(seen))
        found = self.offer.found
        if REDUCING & set(knobs) and self._reduces(best) and not are_as_good(*_beside_each_other(losses)):
            best = {name: found[name] if name in REDUCING else value for name, value in best.items()}
            self.notes.append("reduced precision raised the loss and was not kept")
        best = {name: found[name] if name in self.unsafe else value for name, value in best.items()}
        self.notes.append(f"probed {tried} windows of steps: {_words(best, found)}")
        return best

    def _was_long(self, seen: Seen) -> bool:
        """Whether a window lasted long enough to be believed."""
        return seen.steps * seen.step_s >= WINDOW_S[self._wish.aim]

    def _stands_as_found(self, setting: Setting, knobs: Options) -> bool:
        return all(setting.get(name) == self.offer.found.get(name) for name in knobs)

    def _watch(self, setting: Setting, phase: Phase, seen: Seen) -> Generator[Plan, Seen, None]:
        usual, off, rest, waited = seen.step_s, 0, DRIFTED, 0
        while True:
            seen = yield self._planned(phase, setting, seen.step_s, watched=True)
            waited += 1
            factor = seen.step_s / usual
            off = off + 1 if max(factor, 1 / factor) > DRIFT else 0
            if self._slow and self._wish.mode != "recall":
                slow, self._slow = self._slow, {}
                setting = yield from self._probe(slow, setting, seen)
                seen = yield from self._settle(setting, phase, seen.step_s)
                usual, off = seen.step_s, 0
            elif off >= DRIFTED and waited >= rest and self._wish.mode != "recall" and self._neighbourly(setting):
                self.notes.append(f"a step takes {factor:.2g}x the time it took: probing again")
                before = setting
                setting = yield from self._probe(self._neighbourly(setting), setting, seen)
                self.settled = Settled(self._machine, Config(setting), phase)
                seen = yield self._planned(phase, setting, seen.step_s)
                usual, off, waited = seen.step_s, 0, 0
                rest = DRIFTED if setting != before else min(64, 2 * rest)

    def _neighbourly(self, setting: Setting) -> Options:
        """The knobs to probe when neighbours have come or gone, how they stand now first."""
        knobs = {name: options for name, options in self.offer.knobs.items() if name in NEIGHBOURLY}
        return {
            name: tuple(dict.fromkeys([setting.get(name, options[0]), *options])) for name, options in knobs.items()
        }

    def _planned(self, phase: Phase, setting: Setting, step_s: float, *, watched: bool = False) -> Plan:
        least = math.ceil(WINDOW_S[self._wish.aim] / step_s) if step_s > 0 else LEAST
        fewest = LEAST_LOSSES if self._wish.reduced and phase is Phase.PROBED else LEAST
        steps = min(max(least, fewest), MOST[self._wish.aim])
        return Plan(phase, setting, steps * WATCHED if watched else steps)

    def _known(self, knobs: Mapping[str, Any]) -> Setting:
        """What is remembered, as far as it can be turned here."""
        offered = self.offer.knobs
        return {
            name: knobs[name] if name in knobs and knobs[name] in options else options[0]
            for name, options in offered.items()
        }

    def _cost(self, seen: Seen) -> float:
        """What counts: joules or seconds, the same for all windows of a probing."""
        if not self._in_joules:
            return seen.step_s
        return seen.step_j if seen.step_j is not None else math.inf

    def _reduces(self, setting: Mapping[str, Any]) -> bool:
        return any(name in REDUCING and value != self.offer.found.get(name) for name, value in setting.items())


def _beside_each_other(losses: Sequence[tuple[bool, list[float]]]) -> tuple[list[float], list[float]]:
    """The losses of the last window with less precision, and of the exact ones right before and after it.

    Losses fall while they are compared, so the exact ones must be as early as they are late.
    """
    last = max(place for place, (reduced, _) in enumerate(losses) if reduced)
    before = next((seen for reduced, seen in reversed(losses[:last]) if not reduced), [])
    after = next((seen for reduced, seen in losses[last:] if not reduced), [])
    return losses[last][1], before + after


def _words(setting: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    told = [f"{name} {value}" for name, value in setting.items() if found.get(name) != value]
    return ", ".join(told) if told else "what was found is best"
