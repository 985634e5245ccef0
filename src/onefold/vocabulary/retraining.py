"""What is said about retraining: limits, plans, what they are expected to cost, what was measured, what is kept."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.vocabulary.errors import InputError

EFFECTIVE_BATCH = 256  # batch_size x accumulation of a plan, or fewer where the window is short
DEFAULT_ALPHA = 0.9  # what gain counts against speed; a gain in a second knows of time already


@dataclass(frozen=True, slots=True)
class RetrainingLimits:
    """What a retraining has: the peak memory of the whole process (on a GPU: of that GPU's memory), and the time."""

    memory_bytes: int
    window_s: float

    def check(self) -> None:
        """Tells the first mistake."""
        if self.memory_bytes < 1:
            raise InputError(f"the memory must be at least one byte, but got {self.memory_bytes}")
        if not self.window_s > 0:
            raise InputError(f"the window must be longer than nothing, but got {self.window_s} s")


@dataclass(frozen=True, slots=True)
class RetrainingPlan:
    """How to retrain: what decides its memory, its time and its gain."""

    batch_size: int  # samples that pass through the network together
    accumulation: int = 1  # of them for one update
    freeze_rate: float = 0.0  # share of the layers, counted from the input, that stay as they are
    segments: int = 1  # stretches of layers; what all but the last one computed is computed again for its gradients
    epochs: int = 100  # passes over the new data, at most
    lr: float = 1e-3
    optimizer: str = "adam"  # or sgd

    @property
    def effective_batch(self) -> int:
        """Samples that one update learns from."""
        return self.batch_size * self.accumulation

    def __str__(self) -> str:
        return (
            f"{self.batch_size} x {self.accumulation}, {self.freeze_rate:.0%} frozen, "
            f"{self.segments} segment{'s' * (self.segments != 1)}, lr {self.lr:.2g}, {self.optimizer}"
        )


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """A plan with what it is predicted to need."""

    plan: RetrainingPlan
    memory_bytes: int  # at its peak, of the whole process
    update_s: float  # one update: `accumulation` batches forward and backward
    gain_per_s: float | None = None  # by what share the loss fell in a second, as last measured; None before

    @property
    def samples_per_s(self) -> float:
        """How fast it learns from samples."""
        return self.plan.effective_batch / self.update_s if self.update_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One stretch of the network that follows on the one before, as profiled."""

    name: str
    weight_bytes: int
    saved_bytes: float  # activations kept for the gradients, of one sample
    forward_s: float  # of one sample
    backward_s: float


@dataclass(frozen=True, slots=True)
class MicroWindow:
    """A short time with one plan. Its work is kept."""

    number: int
    plan: RetrainingPlan
    began_s: float  # since the retraining began
    ended_s: float
    updates: int
    samples: int
    loss: float  # mean over its samples
    score: float | None  # the metric on kept-back data at its end; None where only the loss was looked at
    gain_per_s: float
    merit: float  # P = alpha * gain + beta / time, both as shares of the best plan's
    predicted_bytes: int
    measured_bytes: int | None  # peak of the process inside it; None where the system does not tell
    limit_bytes: int  # at its end


@dataclass(frozen=True, slots=True)
class Reaction:
    """Something that a rule decided on the way."""

    at_s: float
    rule: str
    said: str


@dataclass(frozen=True, slots=True)
class MemoryLesson:
    """What a plan was predicted to need, before any correction, and what it did need: for later retrainings."""

    machine: str
    model: str  # signature of the network
    plan: RetrainingPlan
    predicted_bytes: int  # above what the process had before
    measured_bytes: int


@dataclass(frozen=True, slots=True)
class RetrainingSummary:
    """What a retraining came to."""

    model: str
    device: str
    strategy: str
    limits: RetrainingLimits
    metric: str
    before: float  # the metric of the model as it was given, on kept-back data
    after: float  # of the model that is handed back, on the same data
    kept_new: bool  # False: nothing was better, the given model is handed back
    why: str  # this plan, or why the given model stays
    chosen: RetrainingPlan | None
    plans: tuple[PlanEstimate, ...]
    windows: tuple[MicroWindow, ...]
    reactions: tuple[Reaction, ...] = ()
    layers: tuple[LayerCost, ...] = ()
    alpha: float = DEFAULT_ALPHA
    planning_s: float = 0.0
    planning_bytes: int = 0  # that planning added to the process
    held_bytes: int = 0  # that the process had before any plan
    peak_bytes: int | None = None  # of the process over the whole retraining
    elapsed_s: float = 0.0
    higher_is_better: bool = True
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """By how much the metric became better."""
        return (self.after - self.before) * (1 if self.higher_is_better else -1)
