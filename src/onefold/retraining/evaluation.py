"""Evaluation on validation data: a subset after each micro-window, all of it before and after the retraining."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from onefold.retraining.allocator import release_free_memory
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import is_out_of_memory
from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.plan_runner import PlanOutOfMemory
from onefold.retraining.samples import Samples
from onefold.retraining.time_reserve import TimeReserve
from onefold.vocabulary.errors import InputError, unknown

LOWER_IS_BETTER = ("loss", "rmse", "mae", "error", "perplexity")
LARGEST_BATCH = 64
FULL_EVALUATION_SHARE = 0.03  # of the window, at most
MAX_REFERENCE_LOSS = 0.01  # of a metric that is at most 1; of others this share
MIN_SAMPLES = 256  # if there are as many: fewer would rank plans by chance


@dataclass(frozen=True)
class Evaluation:
    """The metric and the loss on validation data."""

    score: float
    loss: float
    higher_is_better: bool
    reference: float | None = None  # the metric on the reference set, if there is one
    keeps_reference: bool = True  # whether that is as good as the given model's, up to MAX_REFERENCE_LOSS

    def is_better_than(self, other: Evaluation) -> bool:
        """Compare by the reference set first, then by the metric, and by the loss if that is equal."""
        if self.keeps_reference != other.keeps_reference:
            return self.keeps_reference
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
        self._least_reference: float | None = None
        self.sample_s = max(1e-9, sum(stage.forward.per_sample for stage in profile.times))
        self.fit_batch(available_bytes)
        count = self.samples_within(FULL_EVALUATION_SHARE * job.limits.window_s)
        self._samples = job.data.validation.first(max(MIN_SAMPLES, count))
        self._subset = self._samples
        reserve.samples = len(self._samples)
        self.metric = job.metric or ""
        self.higher_is_better = True

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
        metrics = self._metrics(samples)
        judged = self.job.data.reference
        on_reference = {} if judged is None else self._metrics(judged.judged)
        self.reserve.observe(self.job.clock() - started, len(samples))
        if not self.metric:
            self.metric = next((name for name in ("accuracy", *metrics) if name in metrics), "loss")
        if self.metric not in metrics:
            raise InputError(unknown("metric", self.metric, metrics, of="the workload"))
        self.higher_is_better = self.metric not in LOWER_IS_BETTER
        score, loss = float(metrics[self.metric]), float(metrics.get("loss", math.nan))
        if math.isnan(loss):
            loss = -score if self.higher_is_better else score
        reference = on_reference.get(self.metric)
        if reference is None:
            return Evaluation(score, loss, self.higher_is_better)
        if self._least_reference is None:  # of the given model, which is evaluated first
            tolerance = MAX_REFERENCE_LOSS * max(1.0, abs(reference))
            self._least_reference = self.oriented(reference) - tolerance
        keeps = self.oriented(reference) >= self._least_reference
        return Evaluation(score, loss, self.higher_is_better, reference, keeps)

    def _metrics(self, samples: Samples) -> dict[str, float]:
        """Run the workload's evaluation, halving the batch size whenever memory runs out."""
        job = self.job
        job.network.eval()
        while True:
            try:
                with torch.no_grad():
                    return dict(job.workload.evaluate(job.network, samples.batches(self.batch_size), job.config))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.batch_size == 1:
                    raise PlanOutOfMemory from None
            self.batch_size //= 2
            release_free_memory()
