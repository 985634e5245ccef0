"""The workload: a model, its data, and how to train and score it.

`build`, `data` and `space` are enough. Everything else has a default that is one method to override:

    check        refuse a configuration, with a reason          loss         of a batch
    optimizer    from the configuration                         schedule     of the learning rate, per epoch
    batches      of a split                                     step         one batch: forward, backward, update
    train_epoch  one epoch                                      metrics      of all outputs of a split
    evaluate     metrics of a model                             serving_network   what is exported for serving
    predictions  which of several outputs the defaults use      reported_metrics   names, to check goals early

torch is imported inside the methods, so that defining a workload is cheap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.error_text import MAX_REASON, cut, headline, message_of
from onefold.vocabulary.errors import OnefoldError, Rejected, WorkloadError, unknown
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.outputs import joined, predictions_in
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.space import Space


class Split(Protocol):
    """One part of the data, as the training loop passes it to the workload."""

    def __len__(self) -> int: ...

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:
        """Yield batches of `size` on the accelerator, shuffled by `generator` or in order.

        With a generator, a last batch of a single sample is dropped if the others have more.
        """


@suggest_fields
@dataclass(frozen=True)
class Data:
    """The three parts of a dataset.

    Each part is a tuple of arrays or tensors of equal length, the targets last, or a torch `Dataset` or
    `IterableDataset`, whose batches may also be dicts and named tuples. Arrays are shared between worker processes; a
    `Dataset` is loaded by each. Without `validation`, a fifth of `train` is held out, but not of an `IterableDataset`.
    """

    train: Any
    validation: Any = None
    test: Any = None


class Workload:
    """A model, its data, and how to train and score it. One instance serves all trials, so keep no state in it."""

    space: Space = Space()
    objective: Objective = Objective(maximize="accuracy")

    @property
    def name(self) -> str:
        """Return the name that studies of this workload start with."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def reported_metrics(self) -> tuple[str, ...] | None:
        """Return the names of all metrics that training and validation may report; None if they are not known before.

        A study checks the metrics of its objective by them before it trains. Workloads with metrics of their own may
        name them here.
        """
        methods = ("train_epoch", "metrics", "evaluate")
        is_default = all(getattr(type(self), name) is getattr(Workload, name) for name in methods)
        return ("loss", "accuracy", "rmse", "train_loss") if is_default else None

    def build(self, config: Config) -> Any:
        """Return the network of a configuration with freshly initialized weights."""
        raise NotImplementedError(f"{type(self).__name__} must define build(self, config) -> torch.nn.Module")

    def data(self) -> Data:
        """Return the dataset; called once per study if its parts are arrays."""
        raise NotImplementedError(f"{type(self).__name__} must define data(self) -> onefold.Data")

    def check(self, config: Config) -> None:
        """Raise `onefold.Rejected("reason")` to refuse a configuration; the search then proposes another."""

    def predictions(self, outputs: Any) -> Any:
        """Return the tensor that the default loss and metrics compare with the targets.

        Of a mapping, tuple, list or dataclass it is what is called "logits", or else the first tensor.
        """
        return predictions_in(outputs)

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:  # noqa: ARG002 - for overriding
        """Return the loss of a batch: cross entropy for class indices, mean squared error for floats.

        `outputs` are what the network returns, which may be several tensors; see `predictions`.
        """
        from torch.nn import functional

        outputs = self.predictions(outputs)
        if targets.is_floating_point():
            return functional.mse_loss(outputs.reshape(targets.shape), targets)
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, model: Any, config: Config) -> Any:
        """Return the torch optimizer from the parameters `optimizer`, `lr`, `momentum` and `weight_decay`, if present.

        `optimizer` is adam (the default), adamw, sgd or rmsprop.
        """
        import torch

        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        kinds["rmsprop"] = torch.optim.RMSprop
        kind = str(config.get("optimizer", "adam"))
        if kind not in kinds:
            raise WorkloadError(unknown("optimizer", kind, kinds))
        options: dict[str, Any] = {"lr": config.get("lr", 1e-3)}
        if kind in ("sgd", "rmsprop"):
            options["momentum"] = config.get("momentum", 0.0)
        return kinds[kind](model.parameters(), weight_decay=config.get("weight_decay", 0.0), **options)

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:  # noqa: ARG002 - for overriding
        """Return a torch learning-rate scheduler that is stepped after each of at most `epochs` epochs, or None."""
        return None

    def batches(self, split: Split, config: Config, generator: Any = None) -> Iterable[Any]:
        """Return the training batches of a split, of the size `batch_size` (64 if the space has none)."""
        return split.batches(int(config.get("batch_size", 64) or 64), generator)

    def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
        """Train on one batch and return its loss."""
        *inputs, targets = batch
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss(model(*inputs), targets, config)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        """Train on all batches and return the metrics to record."""
        losses = [self.step(model, batch, optimizer, config) for batch in batches]
        return {"train_loss": float(sum(losses) / max(1, len(losses)))}

    def metrics(self, outputs: Any, targets: Any, config: Config) -> Metrics:
        """Return the metrics of a split: the loss, and accuracy for class indices or RMSE for floats."""
        loss = float(self.loss(outputs, targets, config))
        outputs = self.predictions(outputs)
        if targets.is_floating_point():
            return {"loss": loss, "rmse": float((outputs.reshape(targets.shape) - targets).square().mean().sqrt())}
        return {"loss": loss, "accuracy": float((outputs.argmax(dim=1) == targets).float().mean())}

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        """Return the metrics of a model that is in evaluation mode, with gradients disabled."""
        import torch

        methods = ("predictions", "loss", "metrics")
        uses_predictions_alone = all(getattr(type(self), name) is getattr(Workload, name) for name in methods)
        outputs, targets = [], []
        for *inputs, target in batches:
            batch_outputs = model(*inputs)
            outputs.append(self.predictions(batch_outputs) if uses_predictions_alone else batch_outputs)
            targets.append(target)
        return self.metrics(joined(outputs, _concatenated), torch.cat(targets), config)

    def serving_network(self, model: Any, config: Config) -> Any:  # noqa: ARG002 - for overriding
        """Return the network to export for serving: `model` itself, or a modified copy of it."""
        return model

    def finish_export(self, path: Path, config: Config, inputs: Callable[[int], list[Any]]) -> None:
        """Modify the exported ONNX file in place; `inputs(count)` returns that many samples for calibration."""


def _concatenated(tensors: list[Any]) -> Any:
    """Concatenate tensors of samples; of tensors without samples, such as an auxiliary loss, return the mean."""
    import torch

    return torch.cat(tensors) if tensors[0].dim() else torch.stack(tensors).float().mean()


def reason_against(check: Callable[[Config], None], config: Config) -> str | None:
    """Return why a workload rejects a configuration; None if it does not."""
    try:
        check(config)
    except Rejected as rejection:
        return cut(message_of(rejection), MAX_REASON) or "no reason given"
    except OnefoldError:
        raise
    except Exception as error:
        summary = ": ".join(dict.fromkeys([type(error).__name__, headline(error)]))
        raise WorkloadError(f"check() may only raise Rejected, but raised {summary} for {config!r}") from error
    return None
