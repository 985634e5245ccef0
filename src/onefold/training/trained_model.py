"""A trained model that somebody kept, with all that is needed to train it further: its workload, data and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onefold.training.assignment import seed_of
from onefold.training.functions import numbers_of
from onefold.training.model_folder import CARD, WEIGHTS, card_of
from onefold.training.seeding import seed_everything
from onefold.training.splits import AnySplit
from onefold.training.trainer import Trainer
from onefold.vocabulary.errors import InputError, OnefoldError
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

SCORED_AT_ONCE = 128


@dataclass(frozen=True)
class Trained:
    """A model's folder, opened."""

    workload: Workload
    config: Config
    network: torch.nn.Module
    trainer: Trainer
    card: dict[str, Any]
    tick: Callable[[], None] = lambda: None  # tells whoever waits that something is going on

    @classmethod
    def read(cls, folder: Path, workload: Workload | None = None) -> Trained:
        """The model of a folder that `--save` or `Result.save` wrote; `workload` is for those that have no file."""
        network, found, config = network_of(folder, workload)
        return cls(found, config, network, Trainer(found, None), card_of(folder))

    def samples(self, count: int) -> tuple[torch.Tensor, ...]:
        """The inputs of some training samples, without their targets."""
        batch = next(iter(self.trainer.splits.train.share(0.0, at_least=count).batches(count)))
        return tuple(part.cpu() for part in batch[:-1])

    def score(self, network: Any) -> Metrics:
        """The metrics of a network, or of whatever answers like one, on the validation data: decisions rest on them."""
        return self._scored(network, self.trainer.splits.validation)

    def test(self, network: Any) -> Metrics:
        """Its metrics on data that no decision has seen; empty without test data."""
        return self._scored(network, self.trainer.splits.test) if self.trainer.splits.test is not None else {}

    def _scored(self, network: Any, split: AnySplit) -> Metrics:
        network.eval()
        with torch.no_grad():
            batches = after_each(split.batches(SCORED_AT_ONCE), self.tick)
            return numbers_of(self.workload.evaluate(network, batches, self.config))

    def fine_tune(
        self,
        network: torch.nn.Module,
        epochs: int,
        *,
        rate: float,
        before: Callable[[int], None],
        after: Callable[[], None],
    ) -> None:
        """Trains on, at a share of the learning rate; `before` each epoch and `after` each step something is done."""
        optimizer = self.workload.optimizer(network, self.config)
        rates = [group["lr"] for group in optimizer.param_groups]
        for epoch in range(epochs):
            before(epoch)
            for group, full in zip(optimizer.param_groups, rates):
                group["lr"] = full * rate * (1 - epoch / epochs)
            seed = seed_of(0, 0, epoch)
            seed_everything(seed)
            batches = self.workload.batches(self.trainer.splits.train, self.config, torch.Generator().manual_seed(seed))
            network.train()
            ticking = after_each(after_each(batches, after), self.tick)
            self.workload.train_epoch(network, ticking, optimizer, self.config)
        network.eval()


def network_of(folder: Path, workload: Workload | None = None) -> tuple[torch.nn.Module, Workload, Config]:
    """The network of such a folder with its weights, and what it was made from."""
    card = card_of(folder)
    reference = card.get("workload") or ""
    if workload is None and not reference:
        raise InputError(f"{folder / CARD} names no workload; give it from Python, as workload=Mine()")
    try:
        found = workload or load(reference)
        config = Config(card["config"])
        network = found.build(config)
        network.load_state_dict(torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True))
    except OnefoldError:
        raise
    except Exception as error:  # weights of another network, a card that somebody edited
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"the model in {folder} cannot be opened: {told}") from error
    return network.eval(), found, config


def after_each(batches: Iterable[Any], do: Callable[[], None]) -> Iterator[Any]:
    """The batches; after each of them, once a step was made with it, something is done."""
    for batch in batches:
        yield batch
        do()
