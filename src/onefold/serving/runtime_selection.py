"""Convert a model for several runtimes, score it in each, and choose among those that keep the requirements.

ONNX Runtime is the reference: a runtime whose answers lose more of the metric than `max_loss`, or that violates a
requirement, is not recommended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from onefold.agent.forms import Argument
from onefold.agent.loaded_model import Array
from onefold.agent.random_inputs import random_input
from onefold.arrays.files import read_arrays
from onefold.runtimes.conversion import convert_model
from onefold.runtimes.output_comparison import AGREEMENT
from onefold.runtimes.race import call_timer, time_in_turns
from onefold.serving.export import samples_beside
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.errors import MissingExtra, ModelError
from onefold.vocabulary.quantities import metric as format_metric
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.serving import ONNXRUNTIME, RuntimeResult, ServingPoint


@dataclass(frozen=True)
class RuntimeScore:
    """How a model is scored in a runtime, and what it may lose there."""

    metric: str
    higher_is_better: bool
    score: Callable[[Path, str], Metrics]  # of the model, in the runtime of this name; raises ModelError
    max_loss: float = 0.01

    def loss(self, metrics: Metrics, reference: Metrics) -> float:
        """Return what the metric has lost against the reference; 0 if one of them does not report it."""
        if self.metric not in metrics or self.metric not in reference:
            return 0.0
        difference = reference[self.metric] - metrics[self.metric]
        return difference if self.higher_is_better else -difference


def convert_and_score(
    model: Path,
    runtimes: Sequence[str],
    scoring: RuntimeScore | None = None,
    require: Mapping[str, Bound] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[RuntimeResult, ...]:
    """Convert a model for these runtimes, beside it, and score it in each.

    Args:
        model: The ONNX file, or the program of a network that cannot be exported, with its samples beside it.
        runtimes: Their names, the reference first.
        scoring: How to score it; by default by the agreement with the reference on its samples.
        require: Bounds on the metrics.
        report: Called with progress messages.

    Returns:
        A result for each runtime: one that cannot serve the model, or may not, has its `reason`.
    """
    results: list[RuntimeResult] = []
    for conversion in convert_model(model, runtimes, lambda name: report(f"converting the model for {name}")):
        result = RuntimeResult(
            conversion.runtime, conversion.version, error=conversion.error, size_bytes=conversion.size_bytes,
            reason=conversion.reason,
        )  # fmt: skip
        if not result.reason and scoring is None:
            result = replace(result, metrics={AGREEMENT: conversion.agreement or 0.0})
        elif not result.reason and scoring is not None:
            report(f"scoring the model in {result.runtime}")
            try:
                result = replace(result, metrics=dict(scoring.score(model, result.runtime)))
            except (ModelError, MissingExtra) as error:
                result = replace(result, reason=str(error))
        reference = results[0].metrics if results else result.metrics
        results.append(
            result if result.reason else replace(result, reason=_refusal(result, reference, scoring, require or {}))
        )
    if results[0].reason and not results[0].metrics:
        raise ModelError(f"the model cannot be served with {results[0].runtime}: {results[0].reason}")
    return tuple(results)


def eligible(results: Sequence[RuntimeResult]) -> list[str]:
    """Return the runtimes that may be recommended; ONNX Runtime, if none were compared."""
    return [result.runtime for result in results if not result.reason] or [ONNXRUNTIME]


def _refusal(
    result: RuntimeResult, reference: Metrics, scoring: RuntimeScore | None, bounds: Mapping[str, Bound]
) -> str:
    """Return why a runtime may not be recommended; empty if it may."""
    for name, given in bounds.items():
        value = result.metrics.get(name)
        bound = given.settled([reference[name]] if name in reference else [])
        if value is not None and bound.violation(value) > 0:
            return f"{name} is {format_metric(name, value)}, but {name}{bound} is required"
    scoring = scoring or RuntimeScore(AGREEMENT, True, lambda *_: {})
    loss = scoring.loss(result.metrics, reference)
    if loss > scoring.max_loss:
        return f"{scoring.metric} is {loss:.3g} worse than in ONNX Runtime"
    return ""


def batch_for(model: Path, inputs: Sequence[Argument], batch_size: int | None = None) -> list[Array]:
    """Return a batch of the samples beside a model, or of random inputs; without a size, all of the samples."""
    samples = samples_beside(model)
    if not samples.is_file():
        return [random_input(argument, batch_size or 1) for argument in inputs]
    arrays = read_arrays(samples, [argument.name for argument in inputs], rows=batch_size)
    if batch_size is None:
        return list(arrays.values())
    return [np.resize(array, (batch_size, *array.shape[1:])) for array in arrays.values()]


def race(model: Path, points: Mapping[str, ServingPoint], reference: str) -> dict[str, float]:
    """Return the seconds per sample of each runtime at its point: of the call that serves, in turns on this machine.

    Raises ModelError if the reference fails; other runtimes that fail are left out.
    """
    with ExitStack() as stack:
        inputs = ServedModel(model, points[reference]).model.inputs  # of others alike, which need not be loaded here
        timers = {
            name: call_timer(stack, partial(ServedModel, model, point), batch_for(model, inputs, point.batch_size))
            for name, point in points.items()
        }
        latencies = time_in_turns(timers, reference=reference)
    return {name: min(values) / points[name].batch_size for name, values in latencies.items()}
