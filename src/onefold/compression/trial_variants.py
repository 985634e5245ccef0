"""Trained trials in several forms, plain and compressed: made by a study's workers, measured on a device.

What is known of a trial is a file of its own, so that a run that was cut off goes on where it stopped; it is made
again when the trial has trained further or something else is asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold.compression.measurement import timed, variant_of
from onefold.compression.variant_builder import BuiltVariant
from onefold.device import Device, open_session, runtime
from onefold.engine import Call, Engine, Failed, Finished
from onefold.store.locks import MeasurementLock
from onefold.training.trainer import Tick, Trainer
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Config, from_json, to_json
from onefold.vocabulary.variants import Recipe, Variant

ROUNDS = 2  # of timing: there are many models
TRIES = 3  # of an order whose worker dies


@dataclass(frozen=True, slots=True)
class VariantRequest:
    """What a worker is to make of a trial: its plain form, and one for each recipe."""

    trial: int
    config: Config
    weights: str
    recipes: tuple[Recipe, ...] = ()
    epochs: int = 1  # of training after pruning
    drop: float = float("inf")  # of the metric; where integers lose more, training with them in mind follows
    lenient: bool = False  # a recipe that cannot be made is left out
    tested: bool = False  # judged on the test data, where there is some, and not on the validation data
    threads: int = 1


@dataclass
class TrialVariants:
    """Makes and measures the forms of trials; at the end of `with` it clears the files of the models away."""

    engine: Engine
    device: Device
    host: Device
    measurement_lock: MeasurementLock
    folder: Path
    keep: bool = False  # the files of the models until it is closed: one of them may be deployed
    tell: Callable[[int, int], None] = lambda done, of: None  # noqa: ARG005 - how many are done, of how many
    failures: dict[int, str] = field(default_factory=dict)  # by trial: why there are no forms of it

    def __enter__(self) -> TrialVariants:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def of(self, orders: Sequence[VariantRequest]) -> Mapping[int, tuple[Variant, ...]]:
        """By trial: the plain form and one for each recipe. Trials that fail are in `failures`."""
        found = {order.trial: known for order in orders if (known := self._recalled(order)) is not None}
        waiting = [(order, 1) for order in orders if order.trial not in found]
        running: dict[int, tuple[VariantRequest, int]] = {}
        self.tell(len(found), len(orders))
        while waiting or running:
            while waiting and self.engine.free:
                order, tries = waiting.pop(0)
                call = Call(make, (order, str(self._place(order.trial))), cores=order.threads)
                running[self.engine.start(call)] = (order, tries)
            for event in self.engine.wait(1.0):
                if not isinstance(event, (Finished, Failed)) or event.run not in running:
                    continue
                order, tries = running.pop(event.run)
                if isinstance(event, Finished):
                    self._take(order, event.value, found)
                elif event.retry and tries < TRIES:
                    waiting.insert(0, (order, tries + 1))
                else:
                    self.failures[order.trial] = event.failure.reason
                self.tell(len(found) + len(self.failures), len(orders))
        return {order.trial: found[order.trial] for order in orders if order.trial in found}

    def file(self, order: VariantRequest, recipe: Recipe) -> Path:
        """The file of one of a trial's forms; they are made again where they have been cleared away."""
        name: str = self._known(order.trial)["files"][json.dumps(to_json(recipe))]
        path = self._place(order.trial) / name
        if not path.is_file():
            self._note(order.trial).unlink()
            self.of([order])
        return path

    def clear(self) -> None:
        """Removes the files of the models; what is known of them stays."""
        for place in self.folder.glob("*/"):
            shutil.rmtree(place, ignore_errors=True)

    def _take(self, order: VariantRequest, made: Sequence[BuiltVariant], found: dict[int, tuple[Variant, ...]]) -> None:
        try:
            # A process of its own for each trial: one that has served others before holds on to some of their memory.
            with open_session(self.device, self.host) as session, self.measurement_lock(), self.engine.quiet():
                served = timed(session, [one.file for one in made], ROUNDS)
            variants = tuple(variant_of(one, served[one.file]) for one in made)
            _check_finite(variants)
        except ModelError as error:
            self.failures[order.trial] = str(error)
            return
        files = {json.dumps(to_json(one.recipe)): one.file.name for one in made}
        known = {"order": self._digest(order), "variants": to_json(variants), "files": files}
        whole = self._note(order.trial).with_suffix(".new")
        whole.write_text(json.dumps(known, indent=1), encoding="utf-8")
        whole.replace(self._note(order.trial))
        found[order.trial] = variants
        if not self.keep:
            shutil.rmtree(self._place(order.trial), ignore_errors=True)

    def _recalled(self, order: VariantRequest) -> tuple[Variant, ...] | None:
        known = self._known(order.trial)
        if known.get("order") != self._digest(order):
            return None
        return tuple(from_json(Variant, one) for one in known["variants"])

    def _known(self, trial: int) -> dict[str, Any]:
        try:
            found = json.loads(self._note(trial).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _digest(self, order: VariantRequest) -> str:
        """Names everything that the forms of a trial depend on."""
        asked = {name: value for name, value in to_json(order).items() if name not in ("weights", "threads")}
        parts = [json.dumps(asked, sort_keys=True), self.device.digest, self.host.digest, runtime()]
        content = hashlib.sha256(Path(order.weights).read_bytes())
        content.update("/".join(parts).encode())
        return content.hexdigest()[:32]

    def _note(self, trial: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{trial:05d}.json"

    def _place(self, trial: int) -> Path:
        return self.folder / f"{trial:05d}"


def _check_finite(variants: Sequence[Variant]) -> None:
    for one in variants:
        for name, value in one.metrics.items():
            if not math.isfinite(value):
                raise ModelError(f"{name} of the form '{one.recipe}' is {value}")


def make(
    trainer: Trainer, order: VariantRequest, folder: str, *, tick: Tick
) -> Generator[None, None, list[BuiltVariant]]:
    """Makes the forms of a trial in a folder of its own."""
    import torch

    from onefold.compression.variant_builder import VariantBuilder

    yield from ()
    torch.set_num_threads(order.threads)
    place = Path(folder)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    trained = trainer.open_model(order.config, order.weights, tick=tick)
    score = trained.test if order.tested and trained.has_test_data else trained.score
    return VariantBuilder(trained, place, order.drop, order.epochs, lambda _: tick(), score).make(
        order.recipes, lenient=order.lenient
    )
