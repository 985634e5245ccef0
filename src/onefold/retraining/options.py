"""Options of a retraining that few callers change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onefold.retraining.control import RetrainingControl
from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.records import Config
from onefold.vocabulary.retraining import DEFAULT_ALPHA
from onefold.vocabulary.workload import Data

OPTIMIZERS = ("adam", "sgd")  # the most promising first
AUTO = "auto"  # search over all optimizers, or over alpha


@suggest_fields
@dataclass(frozen=True)
class RetrainingOptions:
    """Options of `onefold.retrain`.

    Args:
        strategy: How plans are chosen: "onefold", or a registered one (`onefold.baselines.retraining` has some).
        rules: A TOML file whose rules replace or extend the shipped ones.
        alpha: Weight of gain against speed in the choice of a plan, from 0 to 1; "auto" searches for it.
        optimizer: "adam", "sgd" with momentum, or "auto" to search among both.
        metric: The validation metric that decides which model is better; accuracy, if the workload reports it.
        config: Hyperparameters that the workload's loss and evaluation read; for a model without a folder.
        new_classes: Whether the last linear layer grows by classes of the new data that the model does not have.
        reference: Samples of the data that the model was trained for: a new model is not worse on them, and they are
            mixed into the new data. By default those in the folder of the model.
        seed: Seed of the batch order and of dropout.
        home: The folder of the store with memory measurements of earlier retrainings.
        control: Changes the limits while the retraining runs, or ends it.
        started_at: When the window began, on time.monotonic(); None for the time of the call.
    """

    strategy: str = "onefold"
    rules: str | Path | None = None
    alpha: float | str = DEFAULT_ALPHA
    optimizer: str = AUTO
    metric: str | None = None
    config: Config | None = None
    new_classes: bool = True
    reference: Data | None = None
    seed: int = 0
    home: str | Path | None = None
    control: RetrainingControl | None = None
    started_at: float | None = None

    def check(self) -> None:
        """Raise InputError for an unknown optimizer or an alpha out of range."""
        if self.optimizer not in (AUTO, *OPTIMIZERS):
            raise InputError(unknown("optimizer", self.optimizer, (AUTO, *OPTIMIZERS)))
        self.fixed_alpha()

    def fixed_alpha(self) -> float | None:
        """Return alpha as a number; None for "auto"."""
        if self.alpha == AUTO:
            return None
        try:
            alpha = float(self.alpha)
        except ValueError:
            alpha = -1.0
        if not 0 <= alpha <= 1:
            raise InputError(f'alpha must be from 0 (speed alone) to 1 (gain alone), or "auto", got {self.alpha!r}')
        return alpha
