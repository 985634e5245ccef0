"""Build variants of a trained network: compress it, fine-tune it, export it to ONNX and score the file."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from onefold.compression.compressor import StepCallback
from onefold.compression.graph_methods import compress_graph
from onefold.compression.magnitude_pruning import layer_sensitivity
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.onnx_module import BATCH_SIZE, OnnxModule
from onefold.compression.registry import active_methods, needs_training
from onefold.compression.requirements import Requirements
from onefold.serving.export import export, samples_beside
from onefold.serving.runtime_selection import RuntimeScore
from onefold.training.distillation import check_class_scores, distilled
from onefold.training.trained_model import TrainedModel
from onefold.vocabulary import quantities
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.records import Metrics, Value
from onefold.vocabulary.variants import LayerPrecision, Recipe

CALIBRATION_SAMPLES = 256
AWARE_TRAINING_RATE = 0.1  # share of the workload's learning rate
PROVENANCE = ("study", "workload", "trial", "config")  # keys of a model card
PLAIN = Recipe()
Report = Callable[[str], None]
Score = Callable[[Any], Metrics]


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant as an ONNX file, with its metrics."""

    recipe: Recipe
    file: Path
    exact: Path  # the same network before graph-stage methods; its standard operators can be counted
    metrics: Metrics
    uncompressed: tuple[str, ...] = ()  # layers that could not be quantized
    notes: tuple[str, ...] = ()
    control: Metrics = field(default_factory=dict)  # of the uncompressed network, trained as long; if asked for
    layers: tuple[LayerPrecision, ...] = ()  # if a precision was chosen for each layer


@contextmanager
def recorded_failure(recipe: Recipe, failures: dict[Recipe, str], *, skip_failures: bool) -> Iterator[None]:
    """Record why the variant of a recipe cannot be built; raises the ModelError unless failures are skipped."""
    try:
        yield
    except ModelError as error:
        if not skip_failures:
            raise
        failures[recipe] = str(error)


class VariantBuilder:
    """Build variants of a trained network.

    Quantization-aware training follows where quantization alone costs more than `max_metric_loss` of the metric,
    against the unquantized network of the same recipe. Metrics are those of `score`, by default on the validation data.
    `requirements` direct methods that can choose how far to go. `report` receives progress messages. `distill` is the
    weight of the uncompressed network's class scores in the loss of fine-tuning; raises ModelError for a network
    without them.
    """

    def __init__(
        self,
        trained: TrainedModel,
        folder: Path,
        *,
        max_metric_loss: float,
        epochs: int,
        report: Report,
        score: Score | None = None,
        requirements: Requirements | None = None,
        distill: float = 0.0,
    ) -> None:
        if distill:
            check_class_scores(trained)
        self._distill = distill
        self._trained = trained
        self._folder = folder
        self._max_metric_loss = max_metric_loss
        self._epochs = epochs
        self._report = report
        self._score = score or trained.score
        self._requirements = requirements or Requirements()
        self._samples = trained.samples(CALIBRATION_SAMPLES)
        goal = trained.workload.objective.goals[0]
        self.higher_is_better, self.metric = goal.maximize, goal.metric
        self._networks: dict[Recipe, torch.nn.Module] = {PLAIN: trained.network}
        self._built: dict[Recipe, BuiltVariant] = {}
        self._unquantized: dict[Recipe, Metrics] = {}  # of networks that are not among the variants
        self.failures: dict[Recipe, str] = {}  # why a variant was not built

    def build(
        self, recipes: Sequence[Recipe], *, skip_failures: bool = False, with_controls: bool = False
    ) -> list[BuiltVariant]:
        """Return the plain model and one variant per recipe; recipes share the networks of their common stages.

        Variants `with_controls` have the metrics of a network that was trained as long without compression. Raises
        ModelError if a variant cannot be built; with `skip_failures` the reason is in `failures` instead.
        """
        plain = self._built[PLAIN] = self._export(self._networks[PLAIN], PLAIN)
        if self.metric not in plain.metrics:
            known = ", ".join(plain.metrics)
            raise InputError(f"the workload's objective is {self.metric}, but evaluate() returns only {known}")
        self._requirements.check(plain.metrics)
        for recipe in recipes:
            if recipe in self._built:
                continue
            with recorded_failure(recipe, self.failures, skip_failures=skip_failures):
                variant = self._build(recipe)
                if with_controls and needs_training(recipe):
                    variant = replace(variant, control=self._control(recipe))
                self._built[recipe] = variant
                self._report(f"{recipe}: {self.metric} {variant.metrics[self.metric]:.4g}")
        return list(self._built.values())

    def _build(self, recipe: Recipe) -> BuiltVariant:
        """Build a variant; train it with fake quantization if that alone costs too much, and keep the better one."""
        network = self._network(recipe)
        variant = self._export(network, recipe)
        supports = any(method.compressor.supports_aware_training for method, _ in active_methods(recipe))
        if not supports or math.isinf(self._max_metric_loss):
            return variant
        before, exact = variant.metrics[self.metric], self._metrics_before_quantization(recipe)[self.metric]
        if (exact - before) * (1 if self.higher_is_better else -1) <= self._max_metric_loss:
            return variant
        self._report(f"{recipe}: {self.metric} drops from {exact:.4g} to {before:.4g}; training with fake quantization")
        retrained = self._export(self._train_aware(network, recipe), recipe)
        after = retrained.metrics[self.metric]
        epochs = quantities.count(self._aware_epochs, "epoch")
        note = f"{epochs} of quantization-aware training changed {self.metric} from {before:.4g} to {after:.4g}"
        return replace(min(variant, retrained, key=self._loss), notes=(note,))

    def _metrics_before_quantization(self, recipe: Recipe) -> Metrics:
        exact = Recipe.of(
            {method.parameter: value for method, value in active_methods(recipe) if method.stage != "graph"}
        )
        if exact in self._built:
            return self._built[exact].metrics
        if exact not in self._unquantized:
            self._unquantized[exact] = self._export(self._network(recipe), exact).metrics
        return self._unquantized[exact]

    @property
    def _aware_epochs(self) -> int:
        return max(1, self._epochs // 3)

    def _network(self, recipe: Recipe) -> torch.nn.Module:
        """Return the network with the methods of a recipe applied that precede the export."""
        network = self._networks[PLAIN]
        applied: dict[str, Value] = {}
        for method, value in active_methods(recipe):
            if method.stage == "graph":
                continue
            applied[method.parameter] = value
            partial = Recipe.of(applied)
            if partial not in self._networks:
                network = copy.deepcopy(network)
                method.compressor.compress(network, value, self._fine_tuning(self._epochs, str(partial)))
                self._networks[partial] = network
            network = self._networks[partial]
        return network

    def _control(self, recipe: Recipe) -> Metrics:
        """Return the metrics of the network after every method's fine-tuning, at settings that leave it unchanged."""
        network = copy.deepcopy(self._networks[PLAIN])
        for method, _ in active_methods(recipe):
            if method.stage != "graph":
                method.compressor.compress(network, method.neutral, self._fine_tuning(self._epochs, "control"))
        return self._export(network, PLAIN).metrics

    def _train_aware(self, network: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
        """Return a copy of the network, fine-tuned with fake quantization (QAT)."""
        network = copy.deepcopy(network)
        methods = active_methods(recipe)
        preserve = [method.compressor.preserve(network, value) for method, value in methods if method.stage != "graph"]
        tuning = self._fine_tuning(self._aware_epochs, f"{recipe}, quantization-aware")
        with ExitStack() as simulations:
            for method, _ in methods:
                simulations.enter_context(method.compressor.simulate(network))
            tuning.run(network, learning_rate_factor=AWARE_TRAINING_RATE, after_step=lambda: _run_all(preserve))
        return network

    def _fine_tuning(self, epochs: int, title: str) -> _FineTuning:
        return _FineTuning(self._trained, self._samples, epochs, title, self._report, self._distill)

    def _export(self, network: torch.nn.Module, recipe: Recipe) -> BuiltVariant:
        """Export a network, apply the rest of the recipe, and score the file."""
        path = self._folder / f"{len(list(self._folder.glob('*.onnx')))}.onnx"
        exact = export(network, self._samples, path)
        samples = {f"input{index}": part.numpy() for index, part in enumerate(self._samples)}
        path, graph = compress_graph(exact, recipe, samples, self._requirements)
        if path != exact:
            shutil.copyfile(samples_beside(exact), samples_beside(path))
        if not recipe.is_plain:
            strip_metadata(path)
        metrics = self._score(OnnxModule(path, self._trained.outputs))
        return BuiltVariant(recipe, path, exact, metrics, graph.uncompressed, layers=graph.layers)

    def _loss(self, variant: BuiltVariant) -> float:
        before = self._built[PLAIN].metrics[self.metric]
        return (before - variant.metrics[self.metric]) * (1 if self.higher_is_better else -1)

    @property
    def batch_size(self) -> int:
        """Return the number of samples at once with which metrics are computed."""
        return BATCH_SIZE

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Return the study, workload, trial and configuration of the model, as far as its card has them."""
        return {key: self._trained.card[key] for key in PROVENANCE if key in self._trained.card}

    @property
    def scoring(self) -> RuntimeScore:
        """Return how a file is scored in a runtime: by the metrics of the workload on its validation data."""

        def score(file: Path, runtime: str) -> Metrics:
            return self._score(OnnxModule(file, self._trained.outputs, runtime))

        return RuntimeScore(self.metric, self.higher_is_better, score)

    def test(self, file: Path) -> Metrics:
        """Return the metrics of a variant's file on the test data."""
        return self._trained.test(OnnxModule(file, self._trained.outputs))

    def sensitivity(self, sparsity: float) -> Mapping[str, float]:
        """Return, by layer, the metric of the network with only that layer pruned."""
        return layer_sensitivity(self._networks[PLAIN], sparsity, lambda network: self._score(network)[self.metric])


@dataclass(frozen=True)
class _FineTuning:
    trained: TrainedModel
    inputs: Sequence[torch.Tensor]
    epochs: int
    title: str
    report: Report
    distill: float = 0.0

    def run(
        self,
        network: torch.nn.Module,
        *,
        learning_rate_factor: float,
        before_epoch: Callable[[int], None] = lambda epoch: None,  # noqa: ARG005
        after_step: StepCallback = lambda: None,
    ) -> None:
        def before(epoch: int) -> None:
            self.report(f"{self.title}: epoch {epoch + 1} of {self.epochs}")
            before_epoch(epoch)

        with ExitStack() as stack:
            trained = self.trained
            if self.distill:
                workload = distilled(trained.workload, network, trained.network, self.distill)
                trained = replace(trained, workload=stack.enter_context(workload))
            trained.fine_tune(network, self.epochs, rate=learning_rate_factor, before=before, after=after_step)


def _run_all(callbacks: Sequence[StepCallback]) -> None:
    for callback in callbacks:
        callback()
