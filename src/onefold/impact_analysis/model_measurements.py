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
    control: Metrics = field(default_factory=dict)  # the plain model trained as long as the compressed one, if it was
    repeatability: Mapping[Form, Metrics] = field(default_factory=dict)  # relative standard deviation over repetitions

    @property
    def reference(self) -> Metrics:
        """Return the properties that those of the compressed model are compared with."""
        return self.control or self.plain

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
    # By arm: fully trained trials, each with that of "tune all" from the same draw.
    pairs: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    server: str = ""  # the device of the plain models, if it is another one

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

    def paired_models(self, arm: str, form: Form = "plain") -> list[tuple[MeasuredModel, MeasuredModel]]:
        """Return the measured pairs of an arm: each model with that of "tune all" from the same draw."""
        known = {trial: model for trial, model in self.models.items() if model.form(form)}
        return [(known[one], known[other]) for one, other in self.pairs.get(arm, ()) if {one, other} <= set(known)]

    def repeatability(self, name: str) -> list[float]:
        """Return the relative standard deviation of a property over repetitions, of each model in each form."""
        known = [rsd for model in self.models.values() for rsd in model.repeatability.values()]
        return [rsd[name] for rsd in known if name in rsd]

    def all_models(self) -> list[MeasuredModel]:
        """Return all measured models of "tune all"."""
        return [self.models[trial] for trial in self.arm(TUNE_ALL).members if trial in self.models]


def values(models: Sequence[MeasuredModel], name: str, form: Form = "plain") -> list[float]:
    """Return one property of several models."""
    return [model.form(form)[name] for model in models]
