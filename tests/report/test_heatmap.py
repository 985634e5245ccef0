from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.report.plots import Plot
from onefold.report.plots.heatmap import COLUMNS, ROWS, hatching, heatmap, point_tooltip
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint, Surface

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def served(
    batch: int, threads: int, latency_s: float, source: LatencySource = LatencySource.MEASURED, graph_level: str = "all"
) -> Served:
    point = ServingPoint(batch, threads, graph_level)
    times = (latency_s, latency_s * 1.1, latency_s * 1.2, latency_s * 0.99, latency_s * 1.01)
    return Served(point, *times, 20, Energy(latency_s * 3, "modelled"), 2**26, source)


def drawn(*points: Served, chosen: dict[str, Served] | None = None) -> Plot:
    return heatmap(Surface("s", "board", points, 1000), chosen or {}, "surface-0", "Surface")


def elements(plot: Plot, tag: str, kind: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(plot.picture).iter(tag) if e.get("class") == kind]


def cells(plot: Plot) -> dict[str, str]:
    """Return the tooltip of each cell, by its position."""
    groups = [g for g in ElementTree.fromstring(plot.picture).iter("g") if "data-cell" in g.attrib]
    return {group.attrib["data-cell"]: group.findtext("title") or "" for group in groups}


def test_every_known_point_is_a_cell_with_a_tooltip() -> None:
    plot = drawn(
        served(1, 1, 0.01), served(8, 1, 0.02, LatencySource.EMULATED), served(8, 2, 0.015, LatencySource.PREDICTED)
    )
    assert set(cells(plot)) == {"1x1", "8x1", "8x2"}
    assert len(elements(plot, "rect", "cell none")) == 1
    tooltip = cells(plot)["8x1"]
    for wanted in ("batch 8, 1 thread", "400 samples per second", "7.5 mJ a sample (modelled)", "20 ms", "emulated"):
        assert wanted in tooltip
    assert "predicted" in cells(plot)["8x2"]
    assert "(measured, emulated, predicted)" in plot.caption


def test_only_predicted_cells_are_hatched_and_in_the_legend() -> None:
    plot = drawn(served(1, 1, 0.01), served(2, 1, 0.01, LatencySource.PREDICTED))
    assert len(elements(plot, "path", "hatch")) == 1
    assert [kind for kind, _ in plot.legend] == ["ramp", "cell hatched"]
    assert [kind for kind, _ in drawn(served(1, 1, 0.01)).legend] == ["ramp"]


def test_chosen_points_are_ringed_and_named() -> None:
    first, second = served(1, 2, 0.01), served(16, 2, 0.08)
    plot = drawn(first, second, chosen={"latency": first, "throughput": second, "energy": second})
    assert len(elements(plot, "rect", "ring")) == 2
    assert "chosen for latency" in cells(plot)["1x2"]
    assert "chosen for throughput and energy" in cells(plot)["16x2"]
    assert plot.legend[-1][1] == "chosen: L for latency, T for throughput, E for energy"


def test_the_fastest_of_several_points_represents_a_cell() -> None:
    plot = drawn(served(4, 1, 0.02, graph_level="basic"), served(4, 1, 0.01, graph_level="all"))
    assert "graph level all" in cells(plot)["4x1"]


def test_faster_cells_have_stronger_colors() -> None:
    plot = drawn(served(1, 1, 0.1), served(2, 1, 0.1), served(100, 1, 0.1))
    shades = [e.get("class") for e in ElementTree.fromstring(plot.picture).iter("rect")]
    assert shades == ["cell s0", "cell s1", "cell s7"]
    assert "10 to 1,000 samples per second" in plot.legend[0][1]


def test_a_large_surface_is_thinned_but_keeps_measured_and_chosen_points() -> None:
    points = [
        served(batch, threads, 0.001 * batch, LatencySource.MEASURED if batch % 25 == 0 else LatencySource.PREDICTED)
        for batch in range(1, 101)
        for threads in range(1, 25)
    ]
    chosen = next(point for point in points if point.point == ServingPoint(37, 23))
    plot = heatmap(Surface("s", "board", tuple(points), 1), {"energy": chosen}, "surface-0", "Surface")
    shown = {int(index.split("x")[0]) for index in cells(plot)}
    assert {25, 37, 50, 75, 100} <= shown
    assert len(shown) <= COLUMNS + 2
    assert len({index.split("x")[1] for index in cells(plot)}) >= ROWS
    assert "37x23" in cells(plot)


def test_a_surface_without_points_has_a_note() -> None:
    plot = drawn()
    assert not plot.picture
    assert plot.caption == "No serving point has been measured."


def test_unknown_values_are_not_invented() -> None:
    bare = Served(
        ServingPoint(), 0.01, 0.01, 0.01, 0.01, 0.01, 0, Energy(None, "unavailable"), None, LatencySource.PREDICTED
    )
    tooltip = point_tooltip(bare)
    assert "energy unknown" in tooltip
    assert "memory" not in tooltip
    assert "run" not in tooltip


points = st.builds(
    served,
    st.integers(1, 100),
    st.integers(1, 64),
    st.floats(1e-6, 1e3),
    st.sampled_from(LatencySource),
)


@given(st.lists(points, min_size=1, max_size=12))
def test_any_surface_is_drawn_inside_its_frame(known: list[Served]) -> None:
    root = ElementTree.fromstring(drawn(*known, chosen={"latency": known[0]}).picture)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for box in root.iter("rect"):
        x, y, wide, tall = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + wide <= width + 0.1
        assert y + tall <= height
        assert wide > 0 < tall


@given(st.floats(0, 500), st.floats(0, 500), st.floats(5, 100), st.floats(5, 100))
def test_hatching_stays_in_its_box(x: float, y: float, wide: float, tall: float) -> None:
    for index, number in enumerate(map(float, NUMBER.findall(hatching(x, y, wide, tall)))):
        low, size = (x, wide) if index % 2 == 0 else (y, tall)
        assert low - 0.06 <= number <= low + size + 0.06


@pytest.mark.parametrize(("latency_s", "written"), [(1e-7, "10M"), (5e-5, "20k"), (1e-3, "1,000"), (3.0, "0.333")])
def test_rates_are_formatted_briefly(latency_s: float, written: str) -> None:
    assert f">{written}</text>" in drawn(served(1, 1, latency_s)).picture


@pytest.mark.parametrize(
    ("samples_per_s", "shown"),
    [(9_990, "9,990"), (12_340, "12.3k"), (999_000, "999k"), (1_004_934, "1M"), (2.345e6, "2.35M")],
)
def test_a_throughput_has_about_five_characters(samples_per_s: float, shown: str) -> None:
    assert shown in drawn(served(1, 1, 1 / samples_per_s)).picture
