"""Variants of a trained model, each served for real, and the one to take.

found = compress("model/", Recipe(sparsity=0.8, precision="int8"), device="raspberry-pi-4", save="deploy/")
found.plain, found.variants, found.chosen, found.why

A model that was only exported can be quantised; pruning is followed by training, so it needs the model's own folder.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold import deploy
from onefold.compression import (
    ENCODINGS,
    ChannelPruner,
    Masks,
    aware_of_integers,
    gradual,
    pack,
    quantised,
    sensitivity,
    slim,
)
from onefold.compression.quantising import density_of, zeros_of
from onefold.device import CAREFUL, Device, Session, open_session
from onefold.device.catalogue import HOST
from onefold.device.host import find, host
from onefold.device.lease import alone
from onefold.device.roofline import operators
from onefold.errors import InputError
from onefold.inference.export import export, samples_beside
from onefold.inference.signature import architecture
from onefold.records import Energy, Metrics
from onefold.serving import Served, ServingPoint
from onefold.study.home import Home
from onefold.study.measuring import measure
from onefold.study.result import CARD
from onefold.study.trained import Trained
from onefold.variants import Recipe, Variant
from onefold.workload import Workload

PACKED = "model.packed"
CALIBRATION = 256  # samples
ROUNDS = 3  # in which variants are timed in turns; the quickest counts, since whatever disturbs makes slower
RATE = 0.5  # of the learning rate, to begin fine-tuning with
AWARE_RATE = 0.1
NOISE = 1.02  # a variant that takes this much longer is as fast
AIMS = ("size", "latency", "energy")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Compressed:
    """What compressing a model came to."""

    plain: Variant
    variants: tuple[Variant, ...]
    chosen: Variant
    why: str
    metric: str  # by which answers are judged
    device: str
    sensitivity: Mapping[str, float] = field(default_factory=dict)  # by layer: the metric when it alone is pruned
    folder: str = ""  # where the chosen one was saved


def compress(
    model: str | Path,
    recipe: Recipe | Sequence[Recipe],
    *,
    device: str | Device = HOST,
    aim: str = "size",
    drop: float = 0.01,
    epochs: int = 6,
    sensitive: bool = False,
    workload: Workload | None = None,
    save: str | Path | None = None,
    home: str | Path | None = None,
    tell: Tell = lambda _: None,
) -> Compressed:
    """Makes the variants that the recipes ask for, measures them beside the plain model, and chooses one.

    `aim` is what the choice makes small: size (packed), latency or energy. `drop` is what may be lost of the metric.
    `epochs` of training follow pruning; where integers lose more than `drop`, a few more follow that make up for it.
    """
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    for one in recipes:
        one.check()
    if aim not in AIMS:
        raise InputError(f"a variant is chosen for {', '.join(AIMS)}, not for {aim!r}")
    if epochs < 1:
        raise InputError(f"pruning is followed by one epoch of training at least; got {epochs}")
    place, source = Home(home), Path(model)
    target = device if isinstance(device, Device) else find(device, place.devices)
    here = host(place.devices)
    with tempfile.TemporaryDirectory() as folder:
        made = _Workshop(_opened(source, workload), Path(folder), drop, epochs, tell).make(recipes)
        tell(f"measuring {len(made.files)} variants on {target.name}")
        with open_session(target, here) as session, alone(place.lease):
            served = _timed(session, made.files)
        variants = [_variant(one, path, made, served[path]) for one, path in made.files.items()]
        plain = variants[0]
        chosen, why = choose(plain, variants[1:], made.metric, made.higher, aim, drop)
        result = Compressed(plain, tuple(variants[1:]), chosen, why, made.metric, target.name)
        if sensitive:
            tell("pruning each layer by itself")
            result = replace(result, sensitivity=made.sensitivity(max(one.sparsity for one in recipes) or 0.5))
        if save is not None:
            tell(f"writing {save}")
            _save(made.files[chosen.recipe], chosen, made, target, Path(save), place)
            result = replace(result, folder=str(save))
    return result


def choose(
    plain: Variant, variants: Sequence[Variant], metric: str, higher: bool, aim: str, drop: float
) -> tuple[Variant, str]:
    """The variant to take, and why. One that is slower or worse than the plain model is never taken."""

    def lost(one: Variant) -> float:
        return (plain.metrics[metric] - one.metrics[metric]) * (1 if higher else -1)

    def cost(one: Variant) -> float:
        if aim == "energy" and one.energy.joules is not None:
            return one.energy.joules
        return one.latency_s if aim in ("latency", "energy") else one.smallest_bytes

    refused = []
    able = []
    for one in variants:
        if lost(one) > drop:
            refused.append(f"{one.recipe}: {metric} is worse by {lost(one):.4g}, more than the {drop:g} allowed")
        elif one.latency_s > NOISE * plain.latency_s:
            refused.append(f"{one.recipe}: {one.latency_s / plain.latency_s:.2f}x as slow")
        else:
            able.append(one)
    best = min([plain, *able], key=cost)
    told = f"; not taken: {'; '.join(refused)}" if refused else ""
    if best is plain:
        return plain, f"the plain model: no variant is better for {aim}{told}"
    gains = (
        f"{plain.smallest_bytes / best.smallest_bytes:.1f}x smaller, {plain.latency_s / best.latency_s:.2f}x as fast, "
        f"{metric} {best.metrics[metric]:.4g} instead of {plain.metrics[metric]:.4g}"
    )
    return best, f"{best.recipe}: {gains}{told}"


@dataclass
class _Made:
    """The variants as files, and what their answers are worth."""

    files: dict[Recipe, Path]
    exact: dict[Recipe, Path]  # the same networks, before they were quantised
    metrics: dict[Recipe, Metrics]
    left: dict[Recipe, tuple[str, ...]]
    notes: dict[Recipe, tuple[str, ...]]
    metric: str
    higher: bool
    about: Mapping[str, Any]
    sensitivity: Callable[[float], Mapping[str, float]]
    test: Callable[[Path], Metrics]  # of a file, on data that no decision has seen


class _Workshop:
    """Makes variants of a trained network."""

    def __init__(self, trained: Trained, folder: Path, drop: float, epochs: int, tell: Tell) -> None:
        self._trained = trained
        self._folder = folder
        self._drop = drop
        self._epochs = epochs
        self._tell = tell
        self._samples = trained.samples(CALIBRATION)
        goal = trained.workload.objective.goals[0]
        self._higher, self._metric = goal.maximize, goal.metric
        self._networks: dict[Recipe, torch.nn.Module] = {Recipe(): trained.network}
        self._made = _Made({}, {}, {}, {}, {}, self._metric, self._higher, self._about(), self._sensitivity, self._test)

    def make(self, recipes: Sequence[Recipe]) -> _Made:
        """The plain model first, then each recipe; networks that recipes share are trained once."""
        self._add(Recipe())
        if self._metric not in self._made.metrics[Recipe()]:
            known = ", ".join(self._made.metrics[Recipe()])
            raise InputError(f"the workload's objective is {self._metric}, but its evaluation tells only {known}")
        for recipe in dict.fromkeys(recipes):
            if recipe not in self._made.files:
                self._add(recipe)
        return self._made

    def _add(self, recipe: Recipe) -> None:
        network = self._network(replace(recipe, precision="fp32"))
        path, left, metrics = self._written(network, recipe)
        notes: tuple[str, ...] = ()
        if recipe.precision.startswith("int8") and self._lost(metrics) > self._drop:
            self._tell(f"{recipe}: {self._metric} falls to {metrics[self._metric]:.4g}; training with integers in mind")
            before, again = metrics, self._written(self._aware(network, recipe), recipe)
            if self._lost(again[2]) < self._lost(before):
                path, left, metrics = again
            notes = (f"trained with integers in mind: {before[self._metric]:.4g} became {again[2][self._metric]:.4g}",)
        self._made.files[recipe] = path
        self._made.metrics[recipe], self._made.left[recipe], self._made.notes[recipe] = metrics, left, notes
        self._tell(f"{recipe}: {self._metric} {metrics.get(self._metric, float('nan')):.4g}")

    def _network(self, recipe: Recipe) -> torch.nn.Module:
        """The network with fewer channels and more zeros, as the recipe says, trained to make up for it."""
        if recipe in self._networks:
            return self._networks[recipe]
        network = copy.deepcopy(self._networks[Recipe()])
        if recipe.channels:
            network = copy.deepcopy(self._with_fewer_channels(recipe.channels))
        if recipe.sparsity:
            masks, ramp = Masks(network), max(1, 2 * self._epochs // 3)

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
            steps = max(1, self._epochs // 2)
            pruner = ChannelPruner(network, [part[:2] for part in self._samples], share, steps)
            for epoch in range(self._epochs):  # the optimiser is made anew: the weights are others
                if epoch < steps:
                    pruner.step()
                self._tell(f"{recipe}: epoch {epoch + 1} of {self._epochs}")
                rate = RATE * (1 - epoch / self._epochs)
                self._trained.fine_tune(network, 1, rate=rate, before=lambda _: None, after=lambda: None)
            self._networks[recipe] = network
        return self._networks[recipe]

    def _aware(self, network: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
        """The network trained a little further, feeling what integers do to it; its zeros stay."""
        network = copy.deepcopy(network)
        masks = Masks(network)
        masks.keep_zeros()
        epochs = max(1, self._epochs // 3)
        with aware_of_integers(network):
            self._trained.fine_tune(
                network,
                epochs,
                rate=AWARE_RATE,
                before=lambda epoch: self._tell(f"{recipe}: epoch {epoch + 1} of {epochs} with integers in mind"),
                after=masks.apply if recipe.sparsity else lambda: None,
            )
        return network

    def _written(self, network: torch.nn.Module, recipe: Recipe) -> tuple[Path, tuple[str, ...], Metrics]:
        """The variant as a file, the layers that could not be quantised, and what its answers are worth."""
        path = self._folder / f"{len(list(self._folder.glob('*.onnx')))}.onnx"
        exact = self._made.exact[recipe] = export(network, self._samples, path)
        left: tuple[str, ...] = ()
        if recipe.precision != "fp32":
            path = path.with_name(f"{path.stem}-{recipe.precision}.onnx")
            names = [f"input{at}" for at in range(len(self._samples))]
            samples = {name: part.numpy() for name, part in zip(names, self._samples)}
            left = quantised(exact, path, recipe.precision, samples)
            shutil.copyfile(samples_beside(exact), samples_beside(path))
        if not recipe.is_plain:
            slim(path)  # whatever is packed is packed without names
        return path, left, self._trained.score(_Answering(path))

    def _lost(self, metrics: Metrics) -> float:
        before = self._made.metrics[Recipe()][self._metric]
        return (before - metrics[self._metric]) * (1 if self._higher else -1)

    def _sensitivity(self, share: float) -> Mapping[str, float]:
        return sensitivity(self._networks[Recipe()], share, lambda network: self._trained.score(network)[self._metric])

    def _test(self, path: Path) -> Metrics:
        return self._trained.test(_Answering(path))

    def _about(self) -> Mapping[str, Any]:
        return {
            key: self._trained.card[key]
            for key in ("study", "workload", "trial", "config")
            if key in self._trained.card
        }


class _Answering(torch.nn.Module):
    """A model's file that answers like a network: what is judged is what will be served."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._served = deploy.ServedModel(path, ServingPoint(128, torch.get_num_threads()))

    def forward(self, *inputs: torch.Tensor) -> Any:
        answers = self._served(*(part.cpu().numpy() for part in inputs))
        if isinstance(answers, list):
            return tuple(torch.from_numpy(np.asarray(answer)) for answer in answers)
        return torch.from_numpy(answers)


def _opened(source: Path, workload: Workload | None) -> Trained:
    if source.is_dir() and (source / CARD).is_file():
        return Trained.read(source, workload)
    if source.suffix == ".onnx" or (source / deploy.MODEL).is_file():
        raise InputError(
            f"{source} holds a model's graph, but not what is needed to train it and to judge its variants; give the "
            f"folder that onefold tune … --save wrote, with {CARD} in it"
        )
    return Trained.read(source, workload)  # which says what is missing


def _timed(session: Session, files: Mapping[Recipe, Path]) -> dict[Path, Served]:
    """What a single sample costs, variant by variant in turns, with the number of threads that suits each."""
    found: dict[Path, Served] = {}
    points = [ServingPoint(1, threads) for threads in sorted({1, session.threads})]
    for _ in range(ROUNDS):
        for path in files.values():
            session.prepare(path, samples_beside(path), points)
            for point in points:
                served = session.serve(path, point, CAREFUL)
                if path not in found or served.latency_s < found[path].latency_s:
                    found[path] = served
    for path, served in found.items():
        found[path] = replace(served, memory_bytes=session.memory(path, served.point))
    return found


def _variant(recipe: Recipe, path: Path, made: _Made, served: Served) -> Variant:
    content = path.read_bytes()
    # A runtime's own integer operators are of no standard; they do what those do that they came from.
    counted, density = operators(made.exact[recipe], 1), density_of(made.exact[recipe])
    return Variant(
        recipe,
        made.metrics[recipe],
        served.latency_s,
        served.source,
        Energy(served.energy_per_sample_j, served.energy.source),
        served.memory_bytes,
        len(content),
        {name: len(pack(content, name)) for name in ENCODINGS},
        sum(op.flops for op in counted),
        sum(op.flops * density.get(op.name, 1.0) for op in counted),
        architecture(path).parameters,
        zeros_of(path),
        made.left[recipe],
        made.notes[recipe],
    )


def _save(model: Path, chosen: Variant, made: _Made, device: Device, folder: Path, home: Home) -> None:
    """The deployment folder of the chosen variant, and its packed form beside it."""
    about = {**made.about, "variant": str(chosen.recipe), "metrics": dict(chosen.metrics), "test": made.test(model)}
    measure(model, device, save=folder, home=home.path, about=about)
    smallest = min(chosen.encoded_bytes, key=lambda encoding: chosen.encoded_bytes[encoding])
    (folder / PACKED).write_bytes(pack(model.read_bytes(), smallest))
