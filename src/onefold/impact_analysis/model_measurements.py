"""What a study of impact has measured, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onefold.impact_analysis.arms import TUNE_ALL, Arm
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.space import Space

Form = Literal["plain", "compressed"]
FORMS: tuple[Form, ...] = ("plain", "compressed")


@dataclass(frozen=True, slots=True)
class Property:
    """A quantity that models have, by the name under which it is kept."""

    name: str
    title: str
    higher_is_better: bool = False


COSTS = (
    Property("latency_s", "latency"),
    Property("energy_j", "energy"),
    Property("size_bytes", "size"),
    Property("encoded_bytes", "encoded size"),
    Property("flops", "FLOPs"),
    Property("useful_flops", "useful FLOPs"),
    Property("memory_bytes", "memory"),
)


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A trained configuration, what it is like, and what it is like once it is compressed."""

    trial: int
    config: Config
    score: float  # on the validation data: what it was chosen by
    plain: Metrics
    compressed: Metrics = field(default_factory=dict)  # empty where it was not compressed

    def form(self, form: Form) -> Metrics:
        """Its properties in this form."""
        return self.plain if form == "plain" else self.compressed


@dataclass(frozen=True)
class ImpactMeasurements:
    """The arms, who of each went on, and what the models are like."""

    workload: str
    metric: str  # by which models are chosen, and the first property
    higher_is_better: bool
    space: Space
    arms: tuple[Arm, ...]  # their members are trials
    best: Mapping[str, tuple[int, ...]]  # by arm: the trials that were trained in full, best first
    configs: Mapping[int, Config]  # of all trials
    scores: Mapping[int, float]  # of all that finished it, on the validation data after the first, short training
    models: Mapping[int, MeasuredModel]
    device: str
    recipe: str  # how models were compressed, in words
    ways: Mapping[str, str] = field(default_factory=dict)  # by property: how its values came about
    failures: Mapping[int, str] = field(default_factory=dict)  # trials without a result, and why

    @property
    def properties(self) -> tuple[Property, ...]:
        """The metric and the costs that every model has."""
        own = Property(self.metric, self.metric, self.higher_is_better)
        forms = [found for model in self.models.values() for found in (model.plain, model.compressed) if found]
        return (own, *(one for one in COSTS if forms and all(one.name in found for found in forms)))

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that were measured."""
        return FORMS if self.top(form="compressed") else FORMS[:1]

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def top(self, arm: str = TUNE_ALL, form: Form = "plain") -> list[MeasuredModel]:
        """The best models of an arm that have this form, best first."""
        known = (self.models[trial] for trial in self.best.get(arm, ()) if trial in self.models)
        return [model for model in known if model.form(form)]

    def all_models(self) -> list[MeasuredModel]:
        """All models that "tune all" has made and that were measured, best or not."""
        return [self.models[trial] for trial in self.arm(TUNE_ALL).members if trial in self.models]


def values(models: Sequence[MeasuredModel], name: str, form: Form = "plain") -> list[float]:
    """One property of several models."""
    return [model.form(form)[name] for model in models]
