"""What other tuners do about knobs, to compare with."""

from __future__ import annotations

from pathlib import Path

from onefold import Budget, Study
from onefold.testing.toy import Spirals
from onefold.vocabulary.knobs import KnobOptions

TINY = Budget(trials=3, max_epochs=2)


def test_fixed_leaves_the_knobs_alone(tmp_path: Path) -> None:
    study = Study(Spirals(), budget=TINY, home=tmp_path, parallel=1, knobs="on", strategy="fixed")
    assert study.spec.knobs == KnobOptions("off")
    study.run()
    assert study.steered == []


def test_knobs_as_hyperparameters_are_searched_for_accuracy_per_second(tmp_path: Path) -> None:
    study = Study(Spirals(), budget=TINY, home=tmp_path, parallel=1, strategy="as-hyperparameters")
    assert set(study.spec.space.groups["knobs"]) == {"knob_memory_format", "knob_update"}
    result = study.run()
    assert result.config["knob_update"] in ("loop", "fused")
    assert result.objective.goals[0].metric == "(accuracy) / train_time_s"
    assert study.spec.judge == Spirals().objective, "an epoch is judged by what it learned"
