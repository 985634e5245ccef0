"""How plans are chosen. Onefold's own way, and those it is compared with.

onefold     ten plans or fewer, tried in micro-windows by their gain; statistics of batch norms from the new data
static      8 x 32, 40 % frozen, the square root of the layers as segments: set once, from experience
dgc         dynamic gradient checkpointing: as static, with as many segments as the memory makes necessary
dga         dynamic gradient accumulation: as static, with the largest batch that fits
sage        both
bayesian    the plan is searched for by Bayesian optimisation, one micro-window each
oom-retry   the largest batch; when memory runs out, half of it
last-layer  all but the last layer frozen, the largest batch that fits
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

from onefold.retraining.alpha_search import Weighing
from onefold.retraining.gains import GainSearch
from onefold.retraining.planning_context import Situation
from onefold.retraining.ranges import LARGEST_BATCH, feasible, largest_batch
from onefold.retraining.rules import Rules
from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.plans import ALPHA, EFFECTIVE, Expected, Plan

EXPLORED = 0.25  # of the window, at most, is spent on trying plans for the first time
STATIC = Plan(8, EFFECTIVE // 8, freeze_rate=0.4, lr=1e-3)


class Strategy(Protocol):
    """Chooses plans."""

    name: str
    is_careful: bool  # statistics of norms, falling learning rates, scores on the way: what Onefold adds

    def plans(self, situation: Situation) -> tuple[Expected, ...]:
        """The plans that it may choose from; none where it has none that fits."""

    def following(self, plan: Plan | None, elapsed: float) -> Plan:
        """The plan of the next micro-window; `elapsed` is the share of the window that is over."""

    def tell(self, plan: Plan, gain_per_s: float, seconds_per_sample: float) -> float:
        """Learns what a micro-window showed; returns the plan's merit."""

    def give_way(self) -> None:
        """The next micro-window is to have another plan, the best of the others."""

    def best_other_merit(self, plan: Plan) -> float:
        """Of another plan that was tried; 0 where there is none."""

    def tried(self) -> tuple[Expected, ...]:
        """The plans with what became known of them."""


class Onefold:
    """Ten plans or fewer, by their gain."""

    name, is_careful = "onefold", True

    def __init__(self, rules: Rules, alpha: float | None = ALPHA, seed: int = 0) -> None:
        self.rules = rules
        self.weighing = Weighing(seed) if alpha is None else None
        self.search = GainSearch(0.5 if alpha is None else alpha)
        self._settled: Plan | None = None  # once plans have been tried: the one that goes on until it gives way

    def plans(self, situation: Situation) -> tuple[Expected, ...]:
        found = feasible(situation, self.rules)
        self.search.offer(found)
        return found

    def following(self, plan: Plan | None, elapsed: float) -> Plan:  # noqa: ARG002
        untried = self.search.untried()
        if untried and elapsed < EXPLORED:
            return untried[0]
        if self._settled is None or self._settled not in {one.plan for one in self.search.plans}:
            self._settled = self.search.best(like=self._settled)
        return self._settled

    def tell(self, plan: Plan, gain_per_s: float, seconds_per_sample: float) -> float:
        merit = self.search.tell(plan, gain_per_s, seconds_per_sample)
        if self.weighing is not None:
            self.search.alpha = self.weighing.tell(gain_per_s)
        return merit

    def give_way(self) -> None:
        other = self.search.best_other(self._settled)
        if self._settled is not None and other is not None:
            self._settled = other[0]

    def best_other_merit(self, plan: Plan) -> float:
        other = self.search.best_other(plan)
        return other[1] if other is not None else 0.0

    def tried(self) -> tuple[Expected, ...]:
        return self.search.plans


@dataclass
class OnePlan:
    """A strategy with a single plan at a time."""

    name: str
    is_careful = False
    _expected: tuple[Expected, ...] = ()

    def plans(self, situation: Situation) -> tuple[Expected, ...]:
        plan = self.choose(situation)
        plan = None if plan is None else replace(plan, optimizer=situation.optimizer)
        self._expected = () if plan is None else (situation.expected(plan),)
        return self._expected

    def choose(self, situation: Situation) -> Plan | None:
        """The plan for a situation; None where nothing that it knows fits."""
        raise NotImplementedError

    def following(self, plan: Plan | None, elapsed: float) -> Plan:  # noqa: ARG002
        return self._expected[0].plan

    def tell(self, plan: Plan, gain_per_s: float, seconds_per_sample: float) -> float:  # noqa: ARG002
        self._expected = tuple(replace(one, gain_per_s=gain_per_s) for one in self._expected)
        return 1.0

    def give_way(self) -> None:
        """There is no other."""

    def best_other_merit(self, plan: Plan) -> float:  # noqa: ARG002
        return 0.0

    def tried(self) -> tuple[Expected, ...]:
        return self._expected


def _root(situation: Situation) -> int:
    return max(1, min(situation.most_segments, round(math.sqrt(situation.profile.chain.layers))))


class Static(OnePlan):
    """Set once."""

    def choose(self, situation: Situation) -> Plan | None:
        plan = replace(STATIC, segments=_root(situation))
        return plan if situation.fits(plan) else None


class DynamicCheckpointing(OnePlan):
    """As many segments as are necessary."""

    def choose(self, situation: Situation) -> Plan | None:
        for segments in range(1, situation.most_segments + 1):
            plan = replace(STATIC, segments=segments)
            if situation.fits(plan):
                return plan
        return None


class DynamicAccumulation(OnePlan):
    """The largest batch that fits."""

    def choose(self, situation: Situation) -> Plan | None:
        return _largest(situation, replace(STATIC, segments=_root(situation)))


class Sage(OnePlan):
    """The largest batch, and as few segments as allow it."""

    def choose(self, situation: Situation) -> Plan | None:
        found = [
            plan
            for segments in range(1, situation.most_segments + 1)
            if (plan := _largest(situation, replace(STATIC, segments=segments))) is not None
        ]
        return max(found, key=lambda plan: (plan.batch_size, -plan.segments), default=None)


class LastLayer(OnePlan):
    """Only the last layer learns."""

    def choose(self, situation: Situation) -> Plan | None:
        return _largest(situation, replace(STATIC, freeze_rate=1.0, segments=1))


class OomRetry(OnePlan):
    """The largest batch; half of it each time memory runs out. It plans nothing: it finds out."""

    batch_size = LARGEST_BATCH

    def choose(self, situation: Situation) -> Plan | None:  # noqa: ARG002
        return Plan(self.batch_size, EFFECTIVE // self.batch_size) if self.batch_size >= 1 else None

    def ran_out(self) -> None:
        """Memory did."""
        self.batch_size //= 2


def _largest(situation: Situation, plan: Plan) -> Plan | None:
    size = largest_batch(lambda one: situation.fits(replace(plan, batch_size=one)))
    if not size:
        return None
    size = 2 ** (size.bit_length() - 1)  # the product stays what it is
    return replace(plan, batch_size=size, accumulation=EFFECTIVE // size)


class Bayesian:
    """Searches the whole range with a model of what was seen."""

    name, is_careful = "bayesian", False

    def __init__(self, seed: int = 0) -> None:
        from onefold.search.algorithms import searcher
        from onefold.vocabulary.space import Choice, Float, Space

        self._space = Space(
            batch_size=Choice(*(2**power for power in range(9))),
            freeze_rate=Float(0.0, 1.0),
            segments=Float(0.0, 1.0),
            lr=Float(1e-5, 1e-2, log=True),
        )
        self._searcher = searcher("tpe", self._space, seed, 1)
        self._situation: Situation | None = None
        self._asked: dict[Plan, tuple[int, Any]] = {}
        self._number = 0
        self._seen: list[Expected] = []

    def plans(self, situation: Situation) -> tuple[Expected, ...]:
        self._situation = situation
        first = _largest(situation, replace(STATIC, segments=_root(situation)))
        smallest = Plan(1, EFFECTIVE, freeze_rate=1.0)
        start = first or (smallest if situation.fits(smallest) else None)
        return () if start is None else (situation.expected(start),)

    def following(self, plan: Plan | None, elapsed: float) -> Plan:  # noqa: ARG002
        situation = self._situation
        if situation is None:
            raise InputError("plans(situation) comes first")
        for attempt in range(20):
            config = self._searcher.ask(self._number, attempt)
            value = {name: float(config[name]) for name in config}  # type: ignore[arg-type]
            size = round(value["batch_size"])
            segments = 1 + round(value["segments"] * (situation.most_segments - 1))
            found = Plan(size, EFFECTIVE // size, round(value["freeze_rate"], 3), segments, lr=value["lr"])
            if situation.fits(found):
                self._asked[found] = (self._number, config)
                self._number += 1
                return found
        self._number += 1
        return self.plans(situation)[0].plan

    def tell(self, plan: Plan, gain_per_s: float, seconds_per_sample: float) -> float:  # noqa: ARG002
        from onefold.search.searcher import Observation

        if plan in self._asked:
            number, config = self._asked.pop(plan)
            self._searcher.tell(Observation(number, 1, config, (-gain_per_s,)))
        if self._situation is not None:
            self._seen.append(replace(self._situation.expected(plan), gain_per_s=gain_per_s))
        return 1.0

    def give_way(self) -> None:
        """Each micro-window has another plan anyway."""

    def best_other_merit(self, plan: Plan) -> float:  # noqa: ARG002
        return 0.0

    def tried(self) -> tuple[Expected, ...]:
        return tuple({one.plan: one for one in self._seen}.values())


STRATEGIES = ("onefold", "static", "dgc", "dga", "sage", "bayesian", "oom-retry", "last-layer")


def strategy(name: str, rules: Rules, alpha: float | None = ALPHA, seed: int = 0) -> Strategy:
    """The strategy of that name."""
    single = {
        "static": Static,
        "dgc": DynamicCheckpointing,
        "dga": DynamicAccumulation,
        "sage": Sage,
        "oom-retry": OomRetry,
        "last-layer": LastLayer,
    }
    if name == "onefold":
        return Onefold(rules, alpha, seed)
    if name == "bayesian":
        return Bayesian(seed)
    if name in single:
        return single[name](name)
    raise InputError(f"the strategy {name!r} is not known{suggestion(name, STRATEGIES)}")
