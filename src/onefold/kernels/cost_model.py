"""MetaSchedule's XGBoost cost model, which ranks proposals before they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.toolchain import meta_schedule
from onefold.vocabulary.errors import MissingExtra


class CostModel:
    """One model for all operators of a compilation."""

    def __init__(self, threads: int = 1) -> None:
        try:
            import xgboost  # noqa: F401 - MetaSchedule's model imports it late
        except ImportError as error:
            raise MissingExtra("xgboost", "kernels") from error
        tuner = meta_schedule()
        # Below num_warmup_samples it returns scores from numpy's global generator, which no seed of ours reaches.
        self.model: Any = tuner.cost_model.XGBModel(
            extractor=tuner.feature_extractor.PerStoreFeature(), num_warmup_samples=1, num_tuning_cores=threads
        )
        self.is_ready = False

    def scores(self, space: ScheduleSpace, proposals: Sequence[Proposal]) -> np.ndarray[Any, Any]:
        """Return the predicted scores, higher for faster proposals."""
        return np.asarray(self.model.predict(space.context, [proposal.measure_candidate for proposal in proposals]))

    def update(self, space: ScheduleSpace, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Train on measured latencies; None is a failure."""
        if not proposals:
            return
        self.model.update(
            space.context, [proposal.measure_candidate for proposal in proposals], runner_results(latencies)
        )
        self.is_ready = True


def runner_results(latencies: Sequence[float | None]) -> list[Any]:
    """Return latencies as MetaSchedule's RunnerResult records."""
    result = meta_schedule().runner.RunnerResult
    return [result([latency], None) if latency is not None else result(None, "failed") for latency in latencies]
