"""The training work of a study: what it has cost so far, and how much of the plan is left."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.search import planned_work, work_of
from onefold.store.studies import EpochCount
from onefold.study.spec import Spec
from onefold.vocabulary.records import Epoch, Grant, Measurement, Rung, RungState


class StudyWork:
    """Counts epochs and ended rungs. Work has the unit of `onefold.search.work_of`."""

    def __init__(self, spec: Spec) -> None:
        self.cost = Measurement.nothing()
        self.has_reported = False  # whether any trial has reported an epoch
        self._done = 0.0
        self._planned = planned_work(
            spec.rungs,
            spec.budget,
            spec.trial_batches,
            # An upper bound: arms share trials, and pairs share them with the best.
            top_k=spec.top_k * max(1, len(spec.arms)) * (2 if spec.pairs else 1),
            slots=spec.parallelism.parallel,
            from_scratch=spec.workload_objective is None,  # a function has no checkpoint to continue from
        )
        if spec.compress == "in-loop":
            self._planned /= 1 - spec.forks.share  # an upper bound: there may be fewer forks

    def count(self, epoch: Epoch, rung: Rung) -> None:
        """Count an epoch of a rung."""
        self.has_reported = True
        self.cost += epoch.measurement
        self._done += work_of_epoch(epoch, rung)

    def restore(self, rung: Rung, before: Grant | None, counts: Mapping[tuple[int, int], EpochCount]) -> None:
        """Count a rung that ended in an earlier run; `counts` has the epochs of failed ones."""
        self.cost += rung.measurement
        done = 0.0
        if rung.state is RungState.FAILED:
            known = counts.get((rung.trial, rung.rung))
            epochs = known.epochs if known is not None else 0
            done = rung.measurement.time_s if rung.grant.time_s is not None else rung.grant.data * epochs
        self.has_reported = self.has_reported or rung.state is RungState.DONE or done > 0
        self._done += done
        self.settle(rung, before, done)

    def settle(self, rung: Rung, before: Grant | None, done: float) -> None:
        """Count a finished rung as all of its planned work, and remove the rest of a failed one from the plan.

        `before` is the grant that it continues from, and `done` the part of it that is counted already.
        """
        left = work_of(rung.grant, before) - done
        if rung.state is RungState.DONE:
            self._done += left
        else:
            self._planned -= left

    def left_s(self, elapsed_s: float, minutes: float | None) -> float | None:
        """Estimate the time left: the remaining work at the pace so far, at most the rest of the time limit."""
        limit = max(0.0, minutes * 60 - elapsed_s) if minutes is not None else None
        if self._done <= 0:
            return limit
        left = elapsed_s * max(0.0, self._planned - self._done) / self._done
        return left if limit is None else min(left, limit)


def work_of_epoch(epoch: Epoch, rung: Rung) -> float:
    """Return the part of its rung's planned work that an epoch is."""
    return rung.grant.data if rung.grant.time_s is None else epoch.measurement.time_s
