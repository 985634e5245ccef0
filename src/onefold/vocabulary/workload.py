"""What the user brings: a model, its data, and how to train and score it.

`build`, `data` and `space` are enough. Everything else has a default that is one method to override:

    check        refuse a configuration, with a reason          loss         of a batch
    optimizer    from the configuration                         schedule     of the learning rate, per epoch
    batches      how a split is cut                             step         one batch: forward, backward, update
    train_epoch  a special loop                                 metrics      of all outputs of a split
    evaluate     a special evaluation                           serving_network   what is exported for serving

torch is imported inside the methods, so that describing a workload costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onefold.vocabulary.errors import OnefoldError, Rejected, WorkloadError, suggestion
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.space import Space


class Split(Protocol):
    """One part of the data, as the training loop hands it to the workload."""

    def __len__(self) -> int: ...

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:
        """The split in batches of `size` on the accelerator, shuffled by `generator` or as it stands.

        With a generator, a last batch of one sample is left out where the others have more.
        """


@dataclass(frozen=True)
class Data:
    """The three parts of a data set.

    Each part is a tuple of arrays or tensors of equal length, the targets last, or a torch `Dataset`. Arrays are shared
    between worker processes; a `Dataset` is loaded by each. Without `validation`, a fifth of `train` is kept back.
    """

    train: Any
    validation: Any = None
    test: Any = None


class Workload:
    """Model + data + how to train and score. One instance serves all trials: keep no state of a trial in it."""

    space: Space = Space()
    objective: Objective = Objective(maximize="accuracy")

    @property
    def name(self) -> str:
        """What studies of this workload are called."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    def build(self, config: Config) -> Any:
        """The network of a configuration, with fresh weights."""
        raise NotImplementedError(f"{type(self).__name__} must define build(self, config) -> torch.nn.Module")

    def data(self) -> Data:
        """The data set; called once per study where its parts are arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define data(self) -> onefold.Data")

    def check(self, config: Config) -> None:
        """Raises `onefold.Rejected("why")` when a configuration makes no sense; another is drawn in its place."""

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:  # noqa: ARG002 - for overriding
        """Cross entropy for class numbers, mean squared error for anything else."""
        from torch.nn import functional

        if targets.is_floating_point():
            return functional.mse_loss(outputs.reshape(targets.shape), targets)
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, model: Any, config: Config) -> Any:
        """From `optimizer` (adam, adamw, sgd, rmsprop), `lr`, `momentum`, `weight_decay`, where the space has them."""
        import torch

        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        kinds["rmsprop"] = torch.optim.RMSprop
        kind = str(config.get("optimizer", "adam"))
        if kind not in kinds:
            raise WorkloadError(f"the optimizer {kind!r} is not known{suggestion(kind, kinds)}")
        options: dict[str, Any] = {"lr": config.get("lr", 1e-3)}
        if kind in ("sgd", "rmsprop"):
            options["momentum"] = config.get("momentum", 0.0)
        return kinds[kind](model.parameters(), weight_decay=config.get("weight_decay", 0.0), **options)

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:  # noqa: ARG002 - for overriding
        """A torch learning-rate scheduler, stepped after each of at most `epochs` epochs, or None."""
        return None

    def batches(self, split: Split, config: Config, generator: Any = None) -> Iterable[Any]:
        """How a split is cut for training; `batch_size` of the space, 64 without one."""
        return split.batches(int(config.get("batch_size", 64) or 64), generator)

    def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
        """Learns from one batch and returns its loss."""
        *inputs, targets = batch
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(model(*inputs), targets, config)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        """One pass over the batches; returns what to record of it."""
        losses = [self.step(model, batch, optimizer, config) for batch in batches]
        return {"train_loss": float(sum(losses) / max(1, len(losses)))}

    def metrics(self, outputs: Any, targets: Any, config: Config) -> Metrics:
        """What to record of a split's outputs: the loss, and accuracy for class numbers or rmse for anything else."""
        loss = float(self.loss(outputs, targets, config))
        if targets.is_floating_point():
            return {"loss": loss, "rmse": float((outputs.reshape(targets.shape) - targets).square().mean().sqrt())}
        return {"loss": loss, "accuracy": float((outputs.argmax(dim=1) == targets).float().mean())}

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        """The metrics of a model that is already in evaluation mode, without gradients."""
        import torch

        outputs, targets = [], []
        for *inputs, target in batches:
            outputs.append(model(*inputs))
            targets.append(target)
        return self.metrics(torch.cat(outputs), torch.cat(targets), config)

    def serving_network(self, model: Any, config: Config) -> Any:  # noqa: ARG002 - for overriding
        """Return the network to export for serving: `model` itself, or a modified copy of it."""
        return model

    def finish_export(self, path: Path, config: Config, inputs: Callable[[int], list[Any]]) -> None:
        """Modify the exported ONNX file in place; `inputs(count)` returns that many samples for calibration."""


def reason_against(check: Callable[[Config], None], config: Config) -> str | None:
    """Why a workload's check refuses a configuration, if it does."""
    try:
        check(config)
    except Rejected as verdict:
        return str(verdict) or "no reason given"
    except OnefoldError:
        raise
    except Exception as error:
        told = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise WorkloadError(
            f"check may raise Rejected and nothing else, but for {config!r} it raised {told}"
        ) from error
    return None
