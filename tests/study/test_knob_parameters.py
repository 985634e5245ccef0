"""Knobs as parameters of the search space."""

from __future__ import annotations

from pathlib import Path

from onefold import Budget, Choice, Objective, ParallelismOptions, Space, Study
from onefold.testing.toy import Spirals


def test_a_knob_in_the_space_is_searched_like_a_hyperparameter(tmp_path: Path) -> None:
    space = Space(**Spirals.space.groups, knobs={"knob_update": Choice("loop", "fused")})
    study = Study(
        Spirals(),
        space,
        objective=Objective(maximize="accuracy / train_time_s"),
        budget=Budget(trials=3, max_epochs=2),
        knobs="off",
        parallelism=ParallelismOptions(parallel=1),
        home=tmp_path,
    )
    result = study.run()
    assert result.config["knob_update"] in ("loop", "fused")
    assert study.spec.epoch_objective == Spirals().objective, "training time would favor the first epoch"
