"""The measurements of an impact analysis, from which its findings are computed."""

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
    """A measured property of models, by its name in the records."""

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
    """The properties of a trained trial, plain and compressed."""

    trial: int
    config: Config
    score: float  # on the validation data, by which models are ranked
    plain: Metrics
    compressed: Metrics = field(default_factory=dict)  # empty if it was not compressed

    def form(self, form: Form) -> Metrics:
        """Return its properties in this form."""
        return self.plain if form == "plain" else self.compressed


@dataclass(frozen=True)
class ImpactMeasurements:
    """The arms, the trials that each promoted, and the properties of their models."""

    workload: str
    metric: str  # by which models are ranked; the first property
    higher_is_better: bool
    space: Space
    arms: tuple[Arm, ...]  # their members are trial numbers
    best: Mapping[str, tuple[int, ...]]  # by arm: the fully trained trials, best first
    configs: Mapping[int, Config]  # of all trials
    scores: Mapping[int, float]  # validation score after the first rung, of all trials that finished it
    models: Mapping[int, MeasuredModel]
    device: str
    recipe: str  # how models were compressed, as text
    ways: Mapping[str, str] = field(default_factory=dict)  # by property: how it was measured
    failures: Mapping[int, str] = field(default_factory=dict)  # by trial: the reason for a missing result

    @property
    def properties(self) -> tuple[Property, ...]:
        """Return the metric and the costs that every model has a value for."""
        metric = Property(self.metric, self.metric, self.higher_is_better)
        forms = [values for model in self.models.values() for values in (model.plain, model.compressed) if values]
        return (metric, *(cost for cost in COSTS if forms and all(cost.name in values for values in forms)))

    @property
    def forms(self) -> tuple[Form, ...]:
        """Return the measured forms."""
        return FORMS if self.best_models(form="compressed") else FORMS[:1]

    def arm(self, name: str) -> Arm:
        """Return the arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def best_models(self, arm: str = TUNE_ALL, form: Form = "plain") -> list[MeasuredModel]:
        """Return the best models of an arm that were measured in this form, best first."""
        measured = (self.models[trial] for trial in self.best.get(arm, ()) if trial in self.models)
        return [model for model in measured if model.form(form)]

    def all_models(self) -> list[MeasuredModel]:
        """Return all measured models of "tune all"."""
        return [self.models[trial] for trial in self.arm(TUNE_ALL).members if trial in self.models]


def values(models: Sequence[MeasuredModel], name: str, form: Form = "plain") -> list[float]:
    """Return one property of several models."""
    return [model.form(form)[name] for model in models]
