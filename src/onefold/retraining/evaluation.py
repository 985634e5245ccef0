"""Evaluation on validation data: a subset after each micro-window, all of it before and after the retraining."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from onefold.retraining.allocator import release_free_memory
from onefold.retraining.job import RetrainingJob
from onefold.retraining.label_free import DIVERSITY
from onefold.retraining.memory_monitor import is_out_of_memory
from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.plan_runner import PlanOutOfMemory
from onefold.retraining.samples import Samples
from onefold.retraining.time_reserve import TimeReserve
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.workload import Workload

LOWER_IS_BETTER = ("loss", "rmse", "mae", "error", "perplexity")
LARGEST_BATCH = 64
FULL_EVALUATION_SHARE = 0.03  # of the window, at most, for an evaluation of all samples
MAX_REFERENCE_LOSS = 0.01  # absolute for metrics up to 1, relative for others
MIN_DIVERSITY = 0.9  # entropy of the mean prediction, relative to that of the given model
TRIAL_SAMPLES, TRIALS = 16, 2  # evaluated before training begins, to time them
MIN_SAMPLES = 256  # of the subset, if there are so many: fewer would rank plans by chance


@dataclass(frozen=True)
class Evaluation:
    """The metric and the loss on validation data."""

    score: float
    loss: float
    higher_is_better: bool
    reference: float | None = None  # the metric on the reference set, if there is one
    keeps_reference: bool = True  # whether that is as good as the given model's, up to MAX_REFERENCE_LOSS
    is_diverse: bool = True  # without labels: whether predictions are about as diverse as the given model's

    @property
    def is_sound(self) -> bool:
        """Whether the model has neither forgotten the original data nor collapsed to a few classes."""
        return self.keeps_reference and self.is_diverse

    def is_better_than(self, other: Evaluation) -> bool:
        """Compare by soundness first, then by the metric, and by the loss if that is equal."""
        if self.is_sound != other.is_sound:
            return self.is_sound
        if self.score == other.score:
            return self.loss < other.loss
        return (self.score > other.score) == self.higher_is_better


class Evaluator:
    """Evaluate the network on validation data, in batches that fit the memory limit."""

    def __init__(self, job: RetrainingJob, profile: NetworkProfile, available_bytes: int, reserve: TimeReserve) -> None:
        """Choose a batch size that adds at most `available_bytes` to what the process holds.

        `reserve` records how long evaluations take.
        """
        self.job = job
        self.profile = profile
        self.reserve = reserve
        self._given_reference: float | None = None
        self._least_diversity: float | None = None
        self.sample_s = max(1e-9, sum(stage.forward.per_sample for stage in profile.times))
        self.fit_batch(available_bytes)
        count = self.samples_within(FULL_EVALUATION_SHARE * job.limits.window_s)
        self._samples = job.data.validation.first(max(MIN_SAMPLES, count))
        self._subset = self._samples
        reserve.samples = len(self._samples)
        self.metric = self.reference_metric = job.metric or ""
        self.higher_is_better = True

    def try_out(self) -> None:
        """Evaluate a few samples, to predict the duration of later evaluations; raises as `evaluate` does."""
        few, seconds = self._samples.first(TRIAL_SAMPLES), math.inf
        for _ in range(TRIALS):
            started = self.job.clock()
            metrics = self._metrics(few, self.job.workload)
            seconds = min(seconds, self.job.clock() - started)
        _chosen_metric(self.metric, metrics)
        judged = 0 if self.job.data.reference is None else len(self.job.data.reference.judged)
        self.reserve.expected_sample_s = seconds / len(few) * (1 + judged / len(self._samples))

    def fit_batch(self, available_bytes: int) -> None:
        """Use the largest batch size that fits."""
        self.batch_size = LARGEST_BATCH
        self.shrink_batch(available_bytes)

    def shrink_batch(self, available_bytes: int) -> None:
        """Reduce the batch size until it fits."""
        while self.batch_size > 1 and self.profile.inference_bytes(self.batch_size) > available_bytes:
            self.batch_size //= 2

    def samples_within(self, seconds: float) -> int:
        """Return about how many samples can be evaluated in this time."""
        return int(seconds / self.sample_s)

    @property
    def shortest_s(self) -> float:
        """Return the approximate time to evaluate the fewest samples."""
        return MIN_SAMPLES * self.sample_s

    def limit_subset(self, seconds: float) -> None:
        """Choose a subset that takes about this long to evaluate."""
        self._subset = self._samples.first(max(MIN_SAMPLES, self.samples_within(seconds)))

    def evaluate(self) -> Evaluation:
        """Evaluate all validation samples.

        Raises:
            InputError: The workload does not report the metric.
            PlanOutOfMemory: Not even a single sample fits.
        """
        return self._evaluate(self._samples)

    def evaluate_subset(self) -> Evaluation:
        """Evaluate the subset, which is always the same; raises as `evaluate` does."""
        return self._evaluate(self._subset)

    @property
    def has_full_subset(self) -> bool:
        """Whether the subset is all samples, so that an evaluation of either is one of both."""
        return len(self._subset) == len(self._samples)

    def sound_share(self, latest: Evaluation) -> float:
        """Return about how much of a change to keep, so that a model does not forget the original data."""
        if self._given_reference is None or latest.reference is None or latest.keeps_reference:
            return 1.0
        given, lost = self._given_reference, abs(self._given_reference - latest.reference)
        return min(1.0, _tolerance(given) / lost)

    def oriented(self, score: float) -> float:
        """Return the score so that higher is better."""
        return score if self.higher_is_better else -score

    @property
    def subset(self) -> Samples:
        """The samples that are evaluated after each micro-window."""
        return self._subset

    @property
    def samples(self) -> int:
        """Number of samples of a full evaluation."""
        return len(self._samples)

    def _evaluate(self, samples: Samples) -> Evaluation:
        started = self.job.clock()
        job = self.job
        metrics = self._metrics(samples, job.workload)
        judged = job.data.reference
        on_reference = {} if judged is None else self._metrics(judged.judged, job.reference_workload or job.workload)
        self.reserve.observe(self.job.clock() - started, len(samples))
        self.metric = _chosen_metric(self.metric, metrics)
        self.higher_is_better = self.metric not in LOWER_IS_BETTER
        score, loss = float(metrics[self.metric]), float(metrics.get("loss", math.nan))
        if math.isnan(loss):
            loss = -score if self.higher_is_better else score
        is_diverse = self._is_diverse(metrics)
        if not on_reference:
            return Evaluation(score, loss, self.higher_is_better, is_diverse=is_diverse)
        self.reference_metric = _chosen_metric(
            job.reference_metric if job.reference_workload else self.metric, on_reference
        )
        reference = float(on_reference[self.reference_metric])
        if self._given_reference is None:  # of the given model, which is evaluated first
            self._given_reference = reference
        given = self._given_reference
        lost = reference - given if self.reference_metric in LOWER_IS_BETTER else given - reference
        keeps = lost <= _tolerance(given)
        return Evaluation(score, loss, self.higher_is_better, reference, keeps, is_diverse)

    def _is_diverse(self, metrics: Mapping[str, float]) -> bool:
        """Return whether predictions are spread over the classes about as those of the given model."""
        diversity = metrics.get(DIVERSITY)
        if diversity is None or self.job.reference_workload is None:
            return True
        if self._least_diversity is None:  # of the given model, which is evaluated first
            self._least_diversity = MIN_DIVERSITY * diversity
        return diversity >= self._least_diversity

    def _metrics(self, samples: Samples, workload: Workload) -> dict[str, float]:
        """Run the workload's evaluation, halving the batch size whenever memory runs out."""
        job = self.job
        job.network.eval()
        while True:
            try:
                with torch.no_grad():
                    return dict(workload.evaluate(job.network, samples.batches(self.batch_size), job.config))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.batch_size == 1:
                    raise PlanOutOfMemory from None
            self.batch_size //= 2
            release_free_memory()


def _tolerance(reference: float) -> float:
    """Return by how much the metric on the reference set may become worse than this one, of the given model."""
    return MAX_REFERENCE_LOSS * max(1.0, abs(reference))


def _chosen_metric(wanted: str | None, metrics: Mapping[str, float]) -> str:
    """Return the metric that decides: the wanted one, or accuracy, or the first. Raises InputError if it is missing."""
    chosen = wanted or next((name for name in ("accuracy", *metrics) if name in metrics), "loss")
    if chosen not in metrics:
        raise InputError(unknown("metric", chosen, metrics, of="the workload"))
    return chosen
