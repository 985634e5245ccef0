from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from simulated_study import simulate

from onefold import Choice, Float, Int, Objective, Space
from onefold.report.plots import Plot, curves, ladder, parallel, progress, tradeoffs
from onefold.report.plots.curves import thinned
from onefold.report.plots.parallel import wrapped
from onefold.report.plots.scale import Scale, fitted, unit_of
from onefold.report.plots.svg import element, polyline, ribbon, shortened, staircase


def marks(plot: Plot, tag: str, kind: str = "") -> list[ElementTree.Element]:
    root = ElementTree.fromstring(plot.picture)
    return [e for e in root.iter(tag) if "data-t" in e.attrib and (not kind or kind in e.attrib["class"].split())]


def test_progress_has_a_dot_for_each_finished_rung_and_a_cross_for_each_failed_one() -> None:
    summary = simulate().summary
    plot = progress(summary)
    assert len(marks(plot, "circle")) == len(summary.progress)
    assert len(marks(plot, "path", "cross")) == len(summary.failures)
    assert [label for _, label in plot.legend][:4] == ["level 1", "level 2", "level 4", "level 9"]


def test_configurations_have_a_line_for_each_trial() -> None:
    summary = simulate().summary
    plot = parallel(summary)
    assert {line.get("data-t") for line in marks(plot, "path", "line")} == {
        str(trial.number) for trial in summary.trials
    }
    (best,) = marks(plot, "path", "best")
    assert summary.best is not None
    assert best.get("data-t") == str(summary.best.number)
    shown = "".join(ElementTree.fromstring(plot.picture).itertext())
    for name in ("width", "optimizer", "momentum", "accuracy", "log scale", "gelu"):
        assert name in shown
    assert "inactive" in plot.caption


def test_names_of_many_axes_do_not_overlap() -> None:
    names = ("regularization", "augmentations", "normalization", "initialization", "second_momentum", *"abcdefgh")
    many = Space(training={name: Float(0.0, 1.0) for name in names}, model=dict(width=Choice(16, 32), depth=Int(1, 4)))
    root = ElementTree.fromstring(parallel(simulate(space=many).summary).picture)
    spans: dict[float, list[tuple[float, float]]] = {}
    for title in root.iter("text"):
        if title.attrib["class"] == "axis" and title.attrib["text-anchor"] == "middle":
            half, x = len(list(title.itertext())[-1]) * 7.2 / 2, float(title.attrib["x"])
            spans.setdefault(float(title.attrib["y"]), []).append((x - half, x + half))
    for line in map(sorted, spans.values()):
        assert all(before[1] < after[0] for before, after in itertools.pairwise(line))


def test_lines_pass_below_the_axes_of_inactive_parameters() -> None:
    summary = simulate(failing=0).summary
    plot = parallel(summary)
    lowest = {}
    for line in marks(plot, "path", "line"):
        lowest[int(line.attrib["data-t"])] = max(map(float, re.findall(r"[\d.]+", line.attrib["d"])[1::2]))
    for trial in summary.trials:
        assert (lowest[trial.number] == 376.0) == ("momentum" not in trial.config)


def test_promotions_are_lines_and_every_rung_is_a_mark() -> None:
    summary = simulate().summary
    plot = ladder(summary)
    rungs = [rung for trial in summary.trials for rung in trial.rungs]
    assert len(marks(plot, "circle")) + len(marks(plot, "path", "cross")) == len(rungs)
    promoted = {str(trial.number) for trial in summary.trials if len(trial.rungs) > 1}
    assert {line.get("data-t") for line in marks(plot, "path", "line")} == promoted


def test_in_the_ladder_better_results_stand_higher() -> None:
    summary = simulate(failing=0).summary
    places = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in marks(ladder(summary), "circle")]
    results = [next(dot.itertext()) for dot in marks(ladder(summary), "circle")]
    first = min(x for x, _ in places)
    column = sorted(
        (y, float(words.split(": ")[1].split(",")[0])) for (x, y), words in zip(places, results) if x == first
    )
    values = [value for _, value in column]
    assert len(values) == 27
    assert values == sorted(values, reverse=True)


def test_curves_draw_every_trial_and_mark_the_best() -> None:
    summary = simulate().summary
    plot = curves(summary)
    drawn = {mark.get("data-t") for tag in ("path", "circle") for mark in marks(plot, tag)}
    assert drawn == {str(curve.trial) for curve in summary.curves}
    assert len(marks(plot, "path", "best")) == 1


def test_the_trade_off_marks_the_front() -> None:
    summary = simulate(60, objective=Objective(maximize="accuracy", minimize="train_time_s"), rungs="none").summary
    (plot,) = tradeoffs(summary)
    assert len(marks(plot, "circle")) == len(summary.ranking)
    assert {int(dot.attrib["data-t"]) for dot in marks(plot, "circle", "best")} == {t.number for t in summary.front}


def test_every_pair_of_goals_has_a_trade_off() -> None:
    goals = Objective(maximize="accuracy", minimize=("train_time_s", "loss"))
    summary = simulate(60, objective=goals, rungs="none").summary
    plots = tradeoffs(summary)
    assert [plot.title for plot in plots] == [
        "Accuracy against train_time_s", "Accuracy against loss", "Train_time_s against loss",
    ]  # fmt: skip
    assert len({plot.name for plot in plots}) == 3
    for plot in plots:
        assert "the front is over all 3 goals" in plot.caption
        assert {int(dot.attrib["data-t"]) for dot in marks(plot, "circle", "best")} == {t.number for t in summary.front}
        assert not marks(plot, "path", "line"), "a front over three goals is no line in two"
    assert len(tradeoffs(simulate(0, objective=goals).summary)) == 1
    assert tradeoffs(simulate().summary) == []


@pytest.mark.parametrize("plot", [progress, curves, parallel, ladder])
def test_a_plot_without_results_explains_itself(plot: object) -> None:
    assert callable(plot)
    for summary in (simulate(0).summary, simulate(4, failing=99).summary):
        empty = plot(summary)
        assert not empty.picture
        assert empty.caption.endswith(".")
    assert "No parameter varies" in parallel(simulate(2, space=Space(lr=0.1), failing=0).summary).caption


def test_scales_map_values_to_positions_and_round_labels() -> None:
    scale = Scale(0.0, 10.0, 100.0, 0.0)
    assert (scale(0), scale(5), scale(10), scale(99)) == (100, 50, 0, 0)
    assert [label for _, label in scale.ticks()] == ["0", "2", "4", "6", "8", "10"]
    log = Scale(1e-4, 1e-1, 0.0, 90.0, log=True)
    assert log(1e-3) == pytest.approx(30)
    assert [label for _, label in log.ticks()] == ["1e-4", "0.001", "0.01", "0.1"]


@pytest.mark.parametrize(
    "values",
    [(), (0.0,), (5.0,), (-3.0, -3.0), (1e300, 2e300), (-1.7e308, 1.7e308), (1e-300, 1e-299), (1e-12, 1e12),
     (0.98341, 0.98342), (1e16, 1e16 + 4), (-1e-7, 1e-7), (0, 1e9), (float("inf"), 1.0), (1e-320, 1.0)],
)  # fmt: skip
def test_scales_fit_any_values(values: tuple[float, ...]) -> None:
    scale = fitted(values, 300.0, 0.0)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(-1e-6 <= index <= 300 + 1e-6 for index, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)
    assert all(len(label) < 16 for _, label in ticks)
    assert all(0 <= scale(value) <= 300 for value in values)


def test_units_fit_their_values() -> None:
    assert unit_of("train_time_s", [30.0, 7200.0]) == ("h", 3600.0)
    assert unit_of("latency_s", [0.004]) == ("ms", 1e-3)
    assert unit_of("energy_j", [5e4]) == ("kJ", 1e3)
    assert unit_of("accuracy", [0.5]) == ("", 1.0)


def test_svg_paths() -> None:
    assert element("text", "a", class_="x", text_anchor=None, x=1.0) == '<text class="x" x="1">a</text>'
    assert polyline([(0, 1), (2, 3), (1, 4)]) == "M0 1L2 3M1 4"
    assert staircase([(0, 1), (2, 3)]) == "M0 1H2V3"
    assert ribbon([(0, 1), (2, 3)]) == "M0 1C1 1 1 3 2 3"
    assert shortened("abcdef", 4) == "abc…"
    assert wrapped("short", 8) == ["short"]
    assert wrapped("regularization_strength_of_block_3", 16) == ["regularization_", "…ngth_of_block_3"]
    assert len(thinned([(i, 0.0) for i in range(1000)])) <= 82
    assert thinned([(i, 0.0) for i in range(1000)])[-1] == (999, 0.0)
