"""Strategies of tuning at equal budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onefold import Objective, ServingOptions, ServingSpace, compare
from onefold.cli.compare import comparison_json
from onefold.study import ParallelismOptions, Study
from onefold.study.spec import Spec
from onefold.testing.toy import Spirals
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError

TINY = Budget(trials=2, max_epochs=2, min_data=0.5)
FEW_POINTS = ServingOptions(
    space=ServingSpace((1, 8), (1,), ("all",), ("sequential",)), served_samples=5000.0, scenarios=("offline",)
)
INLINE = ParallelismOptions(engine="inline")


def spec(folder: Path) -> Spec:
    return Study.open("study", home=folder.parent.parent, workload=Spirals()).spec


@pytest.mark.slow
def test_strategies_run_at_equal_budget_and_are_judged_alike(home: Path) -> None:
    ended = []
    found = compare(
        Spirals(),
        budget=TINY,
        serving=FEW_POINTS,
        parallelism=INLINE,
        home=home,
        on_event=lambda each: ended.append(each.strategy) if each.event.kind == "ended" else None,
    )
    assert ended == ["onefold", "hierarchical", "hierarchical", "accuracy-only"], "its second tier is a training"
    assert found.strategies == ("onefold", "hierarchical", "accuracy-only")
    _, hierarchical, accuracy = found.runs
    specs = [spec(run.folder) for run in found.runs]
    assert [each.budget for each in specs] == [TINY] * 3
    assert [each.objective == Spirals.objective for each in specs] == [False, True, True]
    assert [each.serving.measure for each in specs] == ["trials", "winner", "winner"]
    assert [each.knobs.mode for each in specs] == ["on", "off", "off"]
    for run in found.runs:
        m = run.metrics
        assert m["time_ratio"] == pytest.approx((m["train_time_s"] + 5000 * m["latency_s"]) / m["accuracy"])
        assert {"tuning_s", "tuning_j", "throughput_per_s"} <= set(m)
    assert hierarchical.config == accuracy.config, "the same search, by the same seed"
    assert hierarchical.metrics["tuning_s"] > accuracy.metrics["tuning_s"] * 0.5
    assert found.metrics[:3] == ("time_ratio", "tuning_s", "tuning_j")
    assert found.ratio("onefold", "tuning_s") == 1
    shown = json.loads(json.dumps(comparison_json(found)))
    assert shown["figures"]["hierarchical"]["tuning_s"]["median"] == hierarchical.metrics["tuning_s"]
    assert [run["strategy"] for run in shown["runs"]] == list(found.strategies)
    with pytest.raises(InputError, match="the comparison 'spirals-1' already exists"):
        compare(Spirals(), name="spirals-1", home=home)


def test_medians_and_ratios_are_over_seeds(home: Path) -> None:
    found = compare(
        Spirals(),
        strategies=["accuracy-only", "onefold"],
        objective=Objective(minimize="latency_s"),
        budget=TINY,
        serving=FEW_POINTS,
        parallelism=INLINE,
        seeds=(1, 2),
        home=home,
    )
    assert [(run.strategy, run.seed) for run in found.runs] == [
        ("accuracy-only", 1), ("onefold", 1), ("accuracy-only", 2), ("onefold", 2),
    ]  # fmt: skip
    values = [run.metrics["latency_s"] for run in found.runs]
    assert found.figure("onefold", "latency_s") == (values[1] + values[3]) / 2
    assert found.ratio("onefold", "latency_s") == pytest.approx((values[1] / values[0] + values[3] / values[2]) / 2)


def test_invalid_comparisons_are_refused(home: Path) -> None:
    with pytest.raises(InputError, match="unknown strategy 'onefolt'; did you mean 'onefold'"):
        compare(Spirals(), strategies=["onefolt"], home=home)
    with pytest.raises(InputError, match="give different strategies"):
        compare(Spirals(), strategies=["onefold", "onefold"], home=home)
    with pytest.raises(InputError, match="a comparison needs a workload"):
        compare(lambda config: 1.0, home=home)
