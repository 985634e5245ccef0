"""The arms of an impact analysis: random searches with nothing, one group or one hyperparameter held at its default.

plan = plan_arms(space, trials=30)
plan.configs                 # each configuration once, even if several arms share it
plan.arms[0].members         # indices of the configurations of "tune all"

Arms use common random numbers: draw i of an arm is draw i of "tune all" with the fixed values put in. Each arm is a
random sample of its space, but a draw that has the fixed values already is shared and trained once, and arms differ by
what is fixed rather than by sampling noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import reason_against

Kind = Literal["all", "group", "hyperparameter"]
TUNE_ALL = "tune all"
MAX_ATTEMPTS = 100  # at a draw that the workload rejects or that repeats another one


@dataclass(frozen=True, slots=True)
class Arm:
    """A random search with some hyperparameters held at their defaults."""

    name: str
    kind: Kind
    fixed: tuple[str, ...]
    members: tuple[int, ...]  # indices of its configurations


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """All arms, and their configurations without repetition."""

    configs: tuple[Config, ...]
    arms: tuple[Arm, ...]

    @property
    def total_trials(self) -> int:
        """Return the number of trials of all arms if none were shared."""
        return sum(len(arm.members) for arm in self.arms)


def plan_arms(
    space: Space,
    trials: int,
    *,
    seed: int = 0,
    check: Callable[[Config], None] = lambda config: None,  # noqa: ARG005
) -> ArmPlan:
    """Return the arms of a space with `trials` configurations each, or as many as a small arm has.

    A configuration that `check` rejects by raising `Rejected` is drawn again. Raises InputError if fewer than two
    hyperparameters vary, or if an arm has no valid configuration.
    """
    if trials < 1:
        raise InputError(f"trials must be at least 1, but got {trials}")
    free = [name for name, parameter in space.parameters.items() if parameter.size > 1]
    if len(free) < 2:
        raise InputError(
            f"an impact analysis needs at least two hyperparameters that vary, but the space has {len(free)}"
        )
    known: dict[Config, int] = {}
    arms = []
    for name, kind, fixed in _arm_kinds(space, free):
        drawn = _sample(space, fixed, trials, seed, check)
        if not drawn:
            raise InputError(f"{name}: the workload rejects every configuration; let check() accept its defaults")
        arms.append(Arm(name, kind, fixed, tuple(known.setdefault(config, len(known)) for config in drawn)))
    return ArmPlan(tuple(known), tuple(arms))


def _arm_kinds(space: Space, free: list[str]) -> list[tuple[str, Kind, tuple[str, ...]]]:
    """Return name, kind and fixed hyperparameters of each arm: all, then each group followed by its members."""
    kinds: list[tuple[str, Kind, tuple[str, ...]]] = [(TUNE_ALL, "all", ())]
    for group, members in space.groups.items():
        varying = tuple(name for name in members if name in free)
        if 1 < len(varying) < len(free):  # one member: the same as its arm; all: nothing to tune
            kinds.append((f"fix {group} (all)" if group in space.parameters else f"fix {group}", "group", varying))
        kinds += [(f"fix {name}", "hyperparameter", (name,)) for name in varying]
    return kinds


def _sample(
    space: Space, fixed: tuple[str, ...], trials: int, seed: int, check: Callable[[Config], None]
) -> list[Config]:
    defaults = {name: space.default_of(name) for name in fixed}
    sample: dict[Config, None] = {}
    for index in range(trials):
        for attempt in range(MAX_ATTEMPTS):
            rng = random.Random(f"{seed}/{index}/{attempt}")
            values = {name: parameter.draw(rng) for name, parameter in space.parameters.items()}
            config = space.config({**values, **defaults})
            if config not in sample and reason_against(check, config) is None:
                sample[config] = None
                break
    return list(sample)
