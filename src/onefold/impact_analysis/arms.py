"""Which configurations a study of impact tries: everything tuned, one group held fixed, one hyperparameter held fixed.

plan = arms(space, trials=30)
plan.configs                 # each once, whoever tries it
plan.arms[0].members         # the places of those that "tune all" tries

The arms are drawn together: draw number i of an arm is draw number i of "tune all" with the fixed values put in. Each
arm by itself is a random sample of its own space, as if it had been drawn alone, but a draw that has the fixed values
already is the same configuration and is trained once, and the arms differ by what is fixed more than by luck.
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
MOST_DRAWS = 100  # of one place of an arm, until one is neither refused nor there already


@dataclass(frozen=True, slots=True)
class Arm:
    """A tuning with some hyperparameters held at their defaults."""

    name: str
    kind: Kind
    fixed: tuple[str, ...]
    members: tuple[int, ...]  # which configurations it tries, by their places


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """All arms, and the configurations that they try, each once."""

    configs: tuple[Config, ...]
    arms: tuple[Arm, ...]

    @property
    def asked(self) -> int:
        """How many trainings the arms would take if none were shared."""
        return sum(len(arm.members) for arm in self.arms)


def arms(
    space: Space,
    trials: int,
    *,
    seed: int = 0,
    check: Callable[[Config], None] = lambda config: None,  # noqa: ARG005
) -> ArmPlan:
    """The arms of a space with `trials` configurations each, fewer where an arm has no more.

    What `check` refuses with `Rejected` is drawn again.
    """
    if trials < 1:
        raise InputError(f"an arm tries at least one configuration, but got {trials}")
    free = [name for name, parameter in space.parameters.items() if parameter.size > 1]
    if len(free) < 2:
        raise InputError(
            f"to hold one hyperparameter fixed there must be another to tune, but the space has {len(free)} that vary"
        )
    known: dict[Config, int] = {}
    found = []
    for name, kind, fixed in _kinds(space, free):
        drawn = _drawn(space, fixed, trials, seed, check)
        if not drawn:
            raise InputError(f"{name}: the workload refuses every configuration; let its check accept its defaults")
        found.append(Arm(name, kind, fixed, tuple(known.setdefault(config, len(known)) for config in drawn)))
    return ArmPlan(tuple(known), tuple(found))


def _kinds(space: Space, free: list[str]) -> list[tuple[str, Kind, tuple[str, ...]]]:
    """The arms in the order of the paper's tables: all, then each group followed by its own hyperparameters."""
    kinds: list[tuple[str, Kind, tuple[str, ...]]] = [(TUNE_ALL, "all", ())]
    for group, members in space.groups.items():
        varying = tuple(name for name in members if name in free)
        if 1 < len(varying) < len(free):  # a group of one is its hyperparameter, and one of all leaves nothing to tune
            kinds.append((f"fix {group} (all)" if group in space.parameters else f"fix {group}", "group", varying))
        kinds += [(f"fix {name}", "hyperparameter", (name,)) for name in varying]
    return kinds


def _drawn(
    space: Space, fixed: tuple[str, ...], trials: int, seed: int, check: Callable[[Config], None]
) -> list[Config]:
    defaults = {name: space.default_of(name) for name in fixed}
    found: dict[Config, None] = {}
    for place in range(trials):
        for attempt in range(MOST_DRAWS):
            rng = random.Random(f"{seed}/{place}/{attempt}")
            values = {name: parameter.draw(rng) for name, parameter in space.parameters.items()}
            config = space.config({**values, **defaults})
            if config not in found and reason_against(check, config) is None:
                found[config] = None
                break
    return list(found)
