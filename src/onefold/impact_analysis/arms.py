"""The arms of an impact analysis: random searches with nothing, one group or one hyperparameter held at its default.

plan = plan_arms(space, trials=30)
plan.configs                 # each configuration once, even if several arms share it
plan.arms[0].members         # indices of the configurations of "tune all"

Arms use common random numbers: draw i of an arm is draw i of "tune all" with the fixed values put in. Each arm is a
random sample of its space, but a draw that has the fixed values already is shared and trained once, and arms differ by
what is fixed rather than by sampling noise. Configurations from one draw are counterparts, which paired tests compare.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import reason_against

Kind = Literal["all", "group", "hyperparameter"]
Draw = tuple[int, int]  # its number, and the attempt that was valid
TUNE_ALL = "tune all"
MAX_ATTEMPTS = 1000  # at a draw that is invalid or repeats another one, before an arm is taken to be exhausted


@dataclass(frozen=True, slots=True)
class Arm:
    """A random search with some hyperparameters held at their defaults."""

    name: str
    kind: Kind
    fixed: tuple[str, ...]
    members: tuple[int, ...]  # indices of its configurations
    counterparts: tuple[int, ...] = ()  # by member: the index in "tune all" from the same draw; -1 if there is none

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return each member with its counterpart in "tune all", unless they are the same configuration."""
        both = zip(self.members, self.counterparts)
        return tuple((member, other) for member, other in both if other not in (-1, member))


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """All arms, and their configurations without repetition."""

    configs: tuple[Config, ...]
    arms: tuple[Arm, ...]
    rejections: str = ""  # how many of the configurations that were drawn are invalid, and a reason; empty if none is

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
    """Return the arms of a space with `trials` valid configurations each, or all that a small arm has.

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
    sampler = _Sampler(space, seed, check)
    known: dict[Config, int] = {}
    by_draw: dict[Draw, int] = {}  # of "tune all", which comes first
    arms = []
    for name, kind, fixed in _arm_kinds(space, free):
        sample = sampler.sample(fixed, trials)
        if not sample:
            raise InputError(
                f"{name}: the workload rejects every configuration ({sampler.last_reason}); let it accept its defaults"
            )
        members = tuple(known.setdefault(config, len(known)) for config in sample)
        if kind == "all":
            by_draw = dict(zip(sample.values(), members))
            arms.append(Arm(name, kind, fixed, members))
        else:
            arms.append(Arm(name, kind, fixed, members, tuple(by_draw.get(draw, -1) for draw in sample.values())))
    return ArmPlan(tuple(known), tuple(arms), sampler.rejections)


def compared_pairs(arm: Arm, ranking: Sequence[int], count: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of an arm with its `count` best models, and those with the best counterparts.

    `ranking` has the trials with a result, best first. The choice treats the arm and "tune all" alike, so that neither
    has an advantage.
    """
    place = {trial: index for index, trial in enumerate(ranking)}
    known = [pair for pair in arm.pairs if set(pair) <= set(place)]
    chosen = {pair for side in (0, 1) for pair in sorted(known, key=lambda pair: place[pair[side]])[:count]}
    return tuple(pair for pair in known if pair in chosen)


def _arm_kinds(space: Space, free: list[str]) -> list[tuple[str, Kind, tuple[str, ...]]]:
    """Return name, kind and fixed hyperparameters of each arm: all, then each group followed by its members."""
    kinds: list[tuple[str, Kind, tuple[str, ...]]] = [(TUNE_ALL, "all", ())]
    for group, members in space.groups.items():
        varying = tuple(name for name in members if name in free)
        if 1 < len(varying) < len(free):  # one member: the same as its arm; all: nothing to tune
            kinds.append((f"fix {group} (all)" if group in space.parameters else f"fix {group}", "group", varying))
        kinds += [(f"fix {name}", "hyperparameter", (name,)) for name in varying]
    return kinds


@dataclass
class _Sampler:
    """Draws the configurations of arms; each is checked once, since building its model takes time."""

    space: Space
    seed: int
    check: Callable[[Config], None]
    reasons: dict[Config, str | None] = field(default_factory=dict)  # why configurations are rejected
    last_reason: str = ""

    def sample(self, fixed: tuple[str, ...], trials: int) -> dict[Config, Draw]:
        """Return different valid configurations with the draw of each; fewer if no more are found."""
        defaults = {name: self.space.default_of(name) for name in fixed}
        sample: dict[Config, Draw] = {}
        for index in range(trials):
            for attempt in range(MAX_ATTEMPTS):
                rng = random.Random(f"{self.seed}/{index}/{attempt}")
                values = {name: parameter.draw(rng) for name, parameter in self.space.parameters.items()}
                config = self.space.config({**values, **defaults})
                if config not in sample and self._is_valid(config):
                    sample[config] = (index, attempt)
                    break
            else:
                break
        return sample

    @property
    def rejections(self) -> str:
        """Describe how many of the configurations were rejected, and the most frequent reason; empty if none was."""
        rejected = Counter(reason for reason in self.reasons.values() if reason is not None)
        if not rejected:
            return ""
        share = rejected.total() / len(self.reasons)
        return f"the workload rejects {share:.0%} of the draws, most often: {rejected.most_common(1)[0][0]}"

    def _is_valid(self, config: Config) -> bool:
        if config not in self.reasons:
            self.reasons[config] = reason_against(self.check, config)
        self.last_reason = self.reasons[config] or self.last_reason
        return self.reasons[config] is None
