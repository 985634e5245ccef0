"""What tells fast implementations from slow ones before they are measured: MetaSchedule's own boosted trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.toolchain import schedules
from onefold.vocabulary.errors import MissingExtra

FAILED_S = 1e10  # as MetaSchedule writes it


class CostModel:
    """Learns from all operators of a compilation."""

    def __init__(self, threads: int = 1) -> None:
        try:
            import xgboost  # noqa: F401 - what MetaSchedule's model runs on
        except ImportError as error:
            raise MissingExtra("xgboost", "kernels") from error
        tuner = schedules()
        # Until it is warm, its scores are drawn from numpy's own chance, which no seed of ours reaches.
        self.model: Any = tuner.cost_model.XGBModel(
            extractor=tuner.feature_extractor.PerStoreFeature(), num_warmup_samples=1, num_tuning_cores=threads
        )
        self.is_ready = False

    def scores(self, space: ScheduleSpace, proposals: Sequence[Proposal]) -> np.ndarray[Any, Any]:
        """Higher is faster."""
        return np.asarray(self.model.predict(space.context, [one.measurable for one in proposals]))

    def learn(self, space: ScheduleSpace, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """From what was measured."""
        if not proposals:
            return
        self.model.update(space.context, [one.measurable for one in proposals], results_of(latencies))
        self.is_ready = True


def results_of(latencies: Sequence[float | None]) -> list[Any]:
    """Latencies as MetaSchedule takes them."""
    result = schedules().runner.RunnerResult
    return [result([one], None) if one is not None else result(None, "failed") for one in latencies]
