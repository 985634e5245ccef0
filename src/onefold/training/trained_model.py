"""A trained model with what is needed to score and fine-tune it: its workload, configuration and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from onefold.model_folder import CARD, ModelFolder, find_weights, read_trained_card
from onefold.training.classification_head import head_named
from onefold.training.metrics import as_metrics
from onefold.training.network import build_network
from onefold.training.seeds import derive_seed, seed_everything
from onefold.training.splits import AnySplit, Splits, open_splits
from onefold.training.weights import load_weights_into
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import InputError, OnefoldError
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import is_bundled, load

BATCH_SIZE = 128  # for scoring
HEAD = "head"  # in the card: the layer that a retraining has grown, and its classes


@dataclass(frozen=True)
class TrainedModel:
    """A network on the CPU, with its workload, configuration and data."""

    workload: Workload
    config: Config
    network: torch.nn.Module
    splits: Splits
    card: Mapping[str, Any] = field(default_factory=dict)
    tick: Callable[[], None] = lambda: None  # called for every batch

    @classmethod
    def read(cls, folder: ModelFolder, workload: Workload | None = None) -> TrainedModel:
        """Open the folder of a trained model; `workload` replaces the one that its card names."""
        network, workload, config = load_network(folder, workload)
        return cls(
            workload, config, network, open_splits(workload, torch.device("cpu")), read_trained_card(folder.path)
        )

    @property
    def has_test_data(self) -> bool:
        """Return whether the workload has test data."""
        return self.splits.test is not None

    def samples(self, count: int) -> tuple[torch.Tensor, ...]:
        """Return the inputs of `count` training samples, without their targets."""
        batch = next(iter(self.splits.train.share(0.0, at_least=count).batches(count)))
        return tuple(part.cpu() for part in batch[:-1])

    @cached_property
    def outputs(self) -> Any:
        """The outputs of the network for two samples, whose structure says which tensor is which."""
        with torch.no_grad():
            return self.network(*self.samples(2))

    def score(self, network: Any) -> Metrics:
        """Return the metrics of a network, or of any callable that acts like one, on the validation data."""
        return self._score_on(self.splits.validation, network)

    def test(self, network: Any) -> Metrics:
        """Return its metrics on the test data, which no decision has used; empty without test data."""
        return self._score_on(self.splits.test, network) if self.splits.test is not None else {}

    def _score_on(self, split: AnySplit, network: Any) -> Metrics:
        network.eval()
        with torch.no_grad():
            batches = after_each(split.batches(BATCH_SIZE), self.tick)
            return as_metrics(self.workload.evaluate(network, batches, self.config))

    def fine_tune(
        self,
        network: torch.nn.Module,
        epochs: int,
        *,
        rate: float,
        before: Callable[[int], None],
        after: Callable[[], None],
    ) -> None:
        """Train `network` for some more epochs, starting at `rate` times the learning rate and decaying linearly.

        `before` is called with the number of each epoch before it starts, `after` after each step.
        """
        optimizer = self.workload.optimizer(network, self.config)
        initial_rates = [group["lr"] for group in optimizer.param_groups]
        for epoch in range(epochs):
            before(epoch)
            for group, initial in zip(optimizer.param_groups, initial_rates):
                group["lr"] = initial * rate * (1 - epoch / epochs)
            seed = derive_seed(0, 0, epoch)
            seed_everything(seed)
            batches = self.workload.batches(self.splits.train, self.config, torch.Generator().manual_seed(seed))
            network.train()
            batches = after_each(after_each(batches, after), self.tick)
            self.workload.train_epoch(network, batches, optimizer, self.config)
        network.eval()


def load_network(folder: ModelFolder, workload: Workload | None = None) -> tuple[torch.nn.Module, Workload, Config]:
    """Return the network in the folder of a trained model with its weights, its workload and its configuration.

    Raises InputError if the folder cannot be opened, and UntrustedFolder if its card names code that may not run.
    """
    card = read_trained_card(folder.path)
    reference = str(card.get("workload") or "")
    if workload is None and not reference:
        raise InputError(f"{folder.path / CARD} names no workload; give one from Python, as workload=MyWorkload()")
    if workload is None and not is_bundled(reference):
        folder.require_trust(f"its workload {reference!r}")
    try:
        workload = workload or load(reference)
        config = Config(card["config"])
        if not folder.is_trusted:
            _check_values(workload, config)
        network = build_network(workload, config)
        if HEAD in card:  # a retraining has added classes
            weight_bytes = find_weights(folder.path).stat().st_size
            grown = card[HEAD]
            head_named(network, str(grown["module"]), int(grown["classes"]), weight_bytes).grow(int(grown["classes"]))
        load_weights_into(network, folder.path)
    except OnefoldError:
        raise
    except Exception as error:  # the weights of another network, or an edited card
        raise InputError(f"the model in {folder.path} cannot be opened: {headline(error)}") from error
    return network.eval(), workload, config


def _check_values(workload: Workload, config: Config) -> None:
    """Raise InputError if a value lies outside of the workload's space, where a network may have any size."""
    for name, value in config.items():
        parameter = workload.space.parameters.get(name)
        if parameter is not None and not parameter.contains(value):
            raise InputError(
                f"the model's configuration has {name}={value!r:.100}, which is not in the space of its workload "
                f"({parameter!r:.200}); if you know where the folder comes from, open it with trust=True"
            )


def after_each(batches: Iterable[Any], action: Callable[[], None]) -> Iterator[Any]:
    """Yield the batches; call `action` when the consumer is done with one and asks for the next."""
    for batch in batches:
        yield batch
        action()
