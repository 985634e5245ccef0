"""How good the model is on data that was kept back: a glance often, the whole of it at the beginning and the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from onefold.retraining.allocator import release_free_memory
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import is_out_of_memory
from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.plan_runner import OutOfMemory
from onefold.retraining.samples import Samples
from onefold.vocabulary.errors import InputError, suggestion

LOWER_IS_BETTER = ("loss", "rmse", "mae", "error", "perplexity")
LARGEST_BATCH = 64
JUDGED = 0.03  # of the window, at most, for judging once by all that was kept back
FEWEST = 256  # samples to judge by, where there are as many: fewer would tell plans apart by chance


@dataclass(frozen=True)
class Evaluation:
    """The metric and the loss."""

    score: float
    loss: float
    higher_is_better: bool

    def is_better_than(self, other: Evaluation) -> bool:
        """By the metric; by the loss where that is the same."""
        if self.score == other.score:
            return self.loss < other.loss
        return (self.score > other.score) == self.higher_is_better


class Evaluator:
    """Scores the network on kept-back data, in batches that fit."""

    def __init__(self, job: RetrainingJob, profile: NetworkProfile, room: int) -> None:
        self.job = job
        self.profile = profile
        self.sample_s = max(1e-9, sum(one.forward.per_sample for one in profile.times))
        self.fit(room)
        whole = self.samples_within(JUDGED * job.limits.window_s)
        self._whole = job.data.validation.share(max(FEWEST, whole))
        self._glance = self._whole
        self.metric = job.metric or ""
        self.higher_is_better = True

    def fit(self, room: int) -> None:
        """From now on in batches that take no more than this."""
        self.batch_size = LARGEST_BATCH
        self.shrink(room)

    def shrink(self, room: int) -> None:
        """In smaller batches, where that has become less."""
        while self.batch_size > 1 and self.profile.scoring_bytes(self.batch_size) > room:
            self.batch_size //= 2

    def samples_within(self, seconds: float) -> int:
        """How many samples can be answered in so many seconds, about."""
        return int(seconds / self.sample_s)

    @property
    def least_s(self) -> float:
        """What judging by the fewest samples takes, about."""
        return FEWEST * self.sample_s

    def within(self, seconds: float) -> None:
        """A glance may take so long."""
        self._glance = self._whole.share(max(FEWEST, self.samples_within(seconds)))

    def whole(self) -> Evaluation:
        """By all that is judged by."""
        return self._judged(self._whole)

    def glimpse(self) -> Evaluation:
        """By a part of it, always the same."""
        return self._judged(self._glance)

    def oriented(self, score: float) -> float:
        """So that higher is better."""
        return score if self.higher_is_better else -score

    def _judged(self, samples: Samples) -> Evaluation:
        found = self._metrics(samples)
        if not self.metric:
            self.metric = next((name for name in ("accuracy", *found) if name in found), "loss")
        if self.metric not in found:
            raise InputError(f"the model is not scored by {self.metric!r}{suggestion(self.metric, found)}")
        self.higher_is_better = self.metric not in LOWER_IS_BETTER
        score, loss = float(found[self.metric]), float(found.get("loss", math.nan))
        if math.isnan(loss):
            loss = -score if self.higher_is_better else score
        return Evaluation(score, loss, self.higher_is_better)

    def _metrics(self, samples: Samples) -> dict[str, float]:
        """In smaller and smaller batches where memory has become scarce; OutOfMemory when one sample is too much."""
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
                    raise OutOfMemory from None
            self.batch_size //= 2
            release_free_memory()
