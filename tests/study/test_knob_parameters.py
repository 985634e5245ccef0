"""Knobs as parameters of the search space."""

from __future__ import annotations

from pathlib import Path

from onefold import Choice, Objective, Space
from onefold.testing.toy import Spirals
from small_studies import small_study


def test_a_knob_in_the_space_is_searched_like_a_hyperparameter(tmp_path: Path) -> None:
    space = Space(**Spirals.space.groups, knobs={"knob_update": Choice("loop", "fused")})
    objective = Objective(maximize="accuracy / train_time_s")
    study = small_study(Spirals(), tmp_path, space=space, objective=objective, knobs="off")
    result = study.run()
    assert result.config["knob_update"] in ("loop", "fused")
    assert study.spec.epoch_objective == Spirals().objective, "training time would favor the first epoch"
