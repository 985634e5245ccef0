"""Records of a retraining: limits, plans, predictions, measurements, result. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import duration

MAX_EPOCHS = 100
EFFECTIVE_BATCH = 256  # batch_size * accumulation of a plan; smaller if the window is short
DEFAULT_ALPHA = 0.9  # weight of gain against speed; a gain per second accounts for time already


@dataclass(frozen=True, slots=True)
class RetrainingLimits:
    """Peak memory of the whole process (on a GPU: of the GPU's memory) and duration of a retraining."""

    memory_bytes: int
    window_s: float

    def check(self) -> None:
        """Raise InputError unless both limits are positive."""
        if self.memory_bytes < 1:
            raise InputError(f"memory must be at least one byte, got {self.memory_bytes}")
        if not self.window_s > 0:
            raise InputError(f"window must be longer than zero, got {duration(self.window_s)}")


@dataclass(frozen=True, slots=True)
class RetrainingPlan:
    """The training settings that determine memory, time and gain of a retraining."""

    batch_size: int  # samples in one forward pass
    accumulation: int = 1  # batches per update (gradient accumulation)
    freeze_rate: float = 0.0  # share of the layers, from the input, that are frozen
    segments: int = 1  # activation checkpointing: all segments but the last are recomputed in the backward pass
    epochs: int = MAX_EPOCHS  # over the new data, at most
    lr: float = 1e-3
    optimizer: str = "adam"  # or sgd

    @property
    def effective_batch(self) -> int:
        """Return the samples per update."""
        return self.batch_size * self.accumulation

    def __str__(self) -> str:
        return (
            f"{self.batch_size} x {self.accumulation}, {self.freeze_rate:.0%} frozen, "
            f"{self.segments} segment{'s' * (self.segments != 1)}, lr {self.lr:.2g}, {self.optimizer}"
        )


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """A plan with its predicted cost."""

    plan: RetrainingPlan
    memory_bytes: int  # peak of the whole process
    update_s: float  # one update: `accumulation` batches forward and backward
    gain_per_s: float | None = None  # relative decrease of the loss per second, as last measured; None before

    @property
    def samples_per_s(self) -> float:
        """Return the training throughput."""
        return self.plan.effective_batch / self.update_s if self.update_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The profiled cost of one stage of the network."""

    name: str
    weight_bytes: int
    saved_bytes: float  # activations saved for the backward pass, per sample
    forward_s: float  # per sample
    backward_s: float  # per sample


@dataclass(frozen=True, slots=True)
class MicroWindow:
    """A short time of training under one plan. The training is kept."""

    number: int
    plan: RetrainingPlan
    began_s: float  # since the retraining began
    ended_s: float
    updates: int
    samples: int
    loss: float  # mean over its training samples
    score: float | None  # the metric on validation data at its end; None if only the loss was recorded
    gain_per_s: float
    merit: float  # P = alpha * gain + (1 - alpha) / time, both relative to the best plan
    predicted_bytes: int
    measured_bytes: int | None  # peak of the process inside it; None if the system does not report it
    limit_bytes: int  # at its end


@dataclass(frozen=True, slots=True)
class Reaction:
    """A decision of a rule during the retraining."""

    at_s: float
    rule: str
    said: str


@dataclass(frozen=True, slots=True)
class MemoryLesson:
    """What a plan was measured to need and to gain, kept for later retrainings."""

    machine: str
    model: str  # signature of the network
    plan: RetrainingPlan
    predicted_bytes: int  # that the plan adds to the process
    measured_bytes: int
    gain_per_s: float | None = None  # relative decrease of the loss per second in its first micro-window
    samples_per_s: float | None = None  # in that micro-window


@dataclass(frozen=True, slots=True)
class GrownClasses:
    """The head of a network that has learned new classes."""

    module: str  # the name of the layer in the network
    before: int  # classes of the given model
    classes: int


@dataclass(frozen=True, slots=True)
class RetrainingSummary:
    """The outcome of a retraining."""

    model: str
    device: str
    strategy: str
    limits: RetrainingLimits
    metric: str
    before: float  # metric of the given model on validation data
    after: float  # metric of the returned model on the same data
    kept_new: bool  # False if no new model was better and the given one is returned
    why: str  # the reason for the chosen plan, or for returning the given model
    chosen: RetrainingPlan | None  # the plan that had the most time
    plans: tuple[PlanEstimate, ...]
    windows: tuple[MicroWindow, ...]
    reactions: tuple[Reaction, ...] = ()
    layers: tuple[LayerCost, ...] = ()
    alpha: float = DEFAULT_ALPHA
    planning_s: float = 0.0
    first_update_s: float | None = None  # when the model was first changed: its weights, or its BatchNorm statistics
    planning_bytes: int = 0  # that planning added to the process
    held_bytes: int = 0  # of the process before any plan
    peak_bytes: int | None = None  # of the process over the whole retraining
    elapsed_s: float = 0.0
    higher_is_better: bool = True
    reference_before: float | None = None  # metric of the given model on samples of the original data, if there are any
    reference_after: float | None = None  # metric of the returned model on them
    grown: GrownClasses | None = None  # if the returned model has new classes
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Return the improvement of the metric."""
        return (self.after - self.before) * (1 if self.higher_is_better else -1)


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase of the retraining has begun, such as "profiling the network"."""

    phase: str


@dataclass(frozen=True, slots=True)
class PlansFound:
    """The plans that fit the memory limit at the start."""

    plans: tuple[PlanEstimate, ...]


RetrainingEvent = PhaseStarted | PlansFound | MicroWindow | Reaction
