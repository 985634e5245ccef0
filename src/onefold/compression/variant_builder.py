"""Where variants of a trained network are made: pruned, narrowed and quantised, each a file that can be served."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold.compression import (
    ChannelPruner,
    PruningMasks,
    fake_quantization,
    gradual,
    quantize_onnx,
    sensitivity,
    strip_metadata,
)
from onefold.serving import deploy
from onefold.serving.export import export, samples_beside
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

CALIBRATION = 256  # samples
RATE = 0.5  # of the learning rate, to begin fine-tuning with
AWARE_RATE = 0.1
ABOUT = ("study", "workload", "trial", "config")  # what a model's card says of where it comes from
Tell = Callable[[str], None]
Score = Callable[[Any], Metrics]


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant as a file, and what its answers are worth."""

    recipe: Recipe
    file: Path
    exact: Path  # the same network, before it was quantised
    metrics: Metrics
    left: tuple[str, ...] = ()  # layers that could not be quantised
    notes: tuple[str, ...] = ()


class VariantBuilder:
    """Makes variants of a trained network."""

    def __init__(
        self, trained: TrainedModel, folder: Path, drop: float, epochs: int, tell: Tell, score: Score | None = None
    ) -> None:
        self._trained = trained
        self._folder = folder
        self._drop = drop
        self._epochs = epochs
        self._tell = tell
        self._score = score or trained.score
        self._samples = trained.samples(CALIBRATION)
        goal = trained.workload.objective.goals[0]
        self.higher_is_better, self.metric = goal.maximize, goal.metric
        self._networks: dict[Recipe, torch.nn.Module] = {Recipe(): trained.network}
        self._made: dict[Recipe, BuiltVariant] = {}

    def make(self, recipes: Sequence[Recipe], *, lenient: bool = False) -> list[BuiltVariant]:
        """The plain model first, then each recipe; networks that recipes share are trained once.

        Where a recipe cannot be made, ModelError is raised; if lenient, the plain model has a note about it instead.
        """
        plain = self._made[Recipe()] = self._written(self._networks[Recipe()], Recipe())
        if self.metric not in plain.metrics:
            known = ", ".join(plain.metrics)
            raise InputError(f"the workload's objective is {self.metric}, but its evaluation tells only {known}")
        for recipe in recipes:
            if recipe in self._made:
                continue
            try:
                self._made[recipe] = self._best_of(recipe)
            except ModelError as error:
                if not lenient:
                    raise
                plain = self._made[Recipe()] = replace(plain, notes=(*plain.notes, f"{recipe}: {error}"))
            else:
                self._tell(f"{recipe}: {self.metric} {self._made[recipe].metrics[self.metric]:.4g}")
        return list(self._made.values())

    def _best_of(self, recipe: Recipe) -> BuiltVariant:
        """The variant; where integers lose too much, the one trained with them in mind, if that is better."""
        network = self._network(replace(recipe, precision="fp32"))
        made = self._written(network, recipe)
        if not recipe.precision.startswith("int8") or self._lost(made) <= self._drop:
            return made
        before = made.metrics[self.metric]
        self._tell(f"{recipe}: {self.metric} falls to {before:.4g}; training with integers in mind")
        again = self._written(self._aware(network, recipe), recipe)
        note = f"trained with integers in mind: {before:.4g} became {again.metrics[self.metric]:.4g}"
        return replace(again if self._lost(again) < self._lost(made) else made, notes=(note,))

    def _network(self, recipe: Recipe) -> torch.nn.Module:
        """The network with fewer channels and more zeros, as the recipe says, trained to make up for it."""
        if recipe in self._networks:
            return self._networks[recipe]
        network = copy.deepcopy(self._networks[Recipe()])
        if recipe.channels:
            network = copy.deepcopy(self._with_fewer_channels(recipe.channels))
        if recipe.sparsity:
            masks, ramp = PruningMasks(network), max(1, 2 * self._epochs // 3)

            def before(epoch: int) -> None:
                masks.prune(gradual(recipe.sparsity, epoch + 1, ramp))
                self._tell(f"{recipe}: epoch {epoch + 1} of {self._epochs}, {masks.sparsity:.0%} zeros")

            self._trained.fine_tune(network, self._epochs, rate=RATE, before=before, after=masks.apply)
        self._networks[recipe] = network
        return network

    def _with_fewer_channels(self, share: float) -> torch.nn.Module:
        recipe = Recipe(channels=share)
        if recipe not in self._networks:
            network = copy.deepcopy(self._networks[Recipe()])
            ChannelPruner(network, [part[:2] for part in self._samples], share).step()
            # All at once and then as fast as in training: in steps, or more slowly, it comes out up to 2 points worse.
            self._trained.fine_tune(
                network,
                self._epochs,
                rate=1.0,
                before=lambda epoch: self._tell(f"{recipe}: epoch {epoch + 1} of {self._epochs}"),
                after=lambda: None,
            )
            self._networks[recipe] = network
        return self._networks[recipe]

    def _aware(self, network: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
        """The network trained a little further, feeling what integers do to it; its zeros stay."""
        network = copy.deepcopy(network)
        masks = PruningMasks(network)
        masks.keep_zeros()
        epochs = max(1, self._epochs // 3)
        with fake_quantization(network):
            self._trained.fine_tune(
                network,
                epochs,
                rate=AWARE_RATE,
                before=lambda epoch: self._tell(f"{recipe}: epoch {epoch + 1} of {epochs} with integers in mind"),
                after=masks.apply if recipe.sparsity else lambda: None,
            )
        return network

    def _written(self, network: torch.nn.Module, recipe: Recipe) -> BuiltVariant:
        path = self._folder / f"{len(list(self._folder.glob('*.onnx')))}.onnx"
        exact = export(network, self._samples, path)
        left: tuple[str, ...] = ()
        if recipe.precision != "fp32":
            path = path.with_name(f"{path.stem}-{recipe.precision}.onnx")
            names = [f"input{at}" for at in range(len(self._samples))]
            samples = {name: part.numpy() for name, part in zip(names, self._samples)}
            left = quantize_onnx(exact, path, recipe.precision, samples)
            shutil.copyfile(samples_beside(exact), samples_beside(path))
        if not recipe.is_plain:
            strip_metadata(path)  # whatever is packed is packed without names
        return BuiltVariant(recipe, path, exact, self._score(OnnxModule(path)), left)

    def _lost(self, made: BuiltVariant) -> float:
        before = self._made[Recipe()].metrics[self.metric]
        return (before - made.metrics[self.metric]) * (1 if self.higher_is_better else -1)

    @property
    def about(self) -> Mapping[str, Any]:
        """Where the model comes from."""
        return {key: self._trained.card[key] for key in ABOUT if key in self._trained.card}

    def test(self, file: Path) -> Metrics:
        """The metrics of a variant's file on data that no decision has seen."""
        return self._trained.test(OnnxModule(file))

    def sensitivity(self, share: float) -> Mapping[str, float]:
        """By layer: the metric when it alone is pruned."""
        return sensitivity(self._networks[Recipe()], share, lambda network: self._score(network)[self.metric])


class OnnxModule(torch.nn.Module):
    """A model's file that answers like a network: what is judged is what will be served."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._served = deploy.ServedModel(path, ServingPoint(128, torch.get_num_threads()))

    def forward(self, *inputs: torch.Tensor) -> Any:
        answers = self._served(*(part.cpu().numpy() for part in inputs))
        if isinstance(answers, list):
            return tuple(torch.from_numpy(np.asarray(answer)) for answer in answers)
        return torch.from_numpy(answers)
