"""The serving surface: throughput by batch size and threads, with the chosen serving points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.axes import LETTER
from onefold.report.plots.marks import SHADES, Plot, shade, tooltip
from onefold.report.plots.svg import element, picture, text
from onefold.serving.ranked_trials import energy_source
from onefold.vocabulary import quantities
from onefold.vocabulary.serving import LatencySource, OptimizeFor, Served, Surface, best

WIDTH, LEFT, TOP = 640.0, 34.0, 30.0
MAX_CELL_WIDTH, MAX_CELL_HEIGHT, MIN_CELL_HEIGHT = 92.0, 44.0, 26.0  # pixels of a cell
HATCH = 7.0  # pixels between the lines of a hatched cell
COLUMNS, ROWS = 40, 16  # more cannot be distinguished
Cell = tuple[int, int]  # batch size, threads


@dataclass(frozen=True, slots=True)
class HeatmapGrid:
    """The batch sizes and threads that are drawn, and their geometry."""

    batches: Sequence[int]
    threads: Sequence[int]

    @property
    def cell_width(self) -> float:
        """Return the width of a cell."""
        return min(MAX_CELL_WIDTH, (WIDTH - LEFT - 4) / len(self.batches))

    @property
    def cell_height(self) -> float:
        """Return the height of a cell."""
        return max(MIN_CELL_HEIGHT, min(MAX_CELL_HEIGHT, 240 / len(self.threads)))

    @property
    def bottom(self) -> float:
        """Return the lower edge of the cells."""
        return TOP + self.cell_height * len(self.threads)

    def corner(self, cell: Cell) -> tuple[float, float]:
        """Return the upper left corner of a cell; more threads are further up."""
        row = len(self.threads) - 1 - self.threads.index(cell[1])
        return LEFT + self.cell_width * self.batches.index(cell[0]), TOP + self.cell_height * row


def heatmap(surface: Surface, chosen: Mapping[str, Served], name: str, title: str) -> Plot:
    """Draw a cell per batch size and number of threads, with rings around the chosen points, by purpose.

    If several points share a cell, since other knobs were varied too, the fastest one represents it.
    """
    cells = _cells(surface.served)
    if not cells:
        return Plot(name, title, "No serving point has been measured.")
    sources = {served.source for served in cells.values()}
    labels = ", ".join(source.value for source in LatencySource if source in sources)
    rates = [served.throughput_per_s for served in cells.values()]
    slowest, fastest = quantities.number(_rounded(min(rates))), quantities.number(_rounded(max(rates)))
    grid = _grid(cells, chosen)
    legend = [("ramp", f"{slowest} to {fastest} samples per second")]
    if LatencySource.PREDICTED in sources:
        legend.append(("cell hatched", "predicted from other points"))
    if len(grid.batches) * len(grid.threads) > sum(p[0] in grid.batches and p[1] in grid.threads for p in cells):
        legend.append(("cell none", "unknown"))
    if chosen:
        marks = ", ".join(f"{purpose[0].upper()} for {purpose}" for purpose in chosen)
        legend.append(("cell ring", f"chosen: {marks}"))
    caption = f"Samples per second by batch size and threads ({labels})."
    return Plot(name, title, caption, _drawing(cells, chosen, grid), tuple(legend))


def _cells(served: Iterable[Served]) -> dict[Cell, Served]:
    by_cell: dict[Cell, list[Served]] = {}
    for point in served:
        by_cell.setdefault((point.point.batch_size, point.point.threads), []).append(point)
    return {cell: best(by_cell[cell], OptimizeFor.THROUGHPUT) for cell in sorted(by_cell)}


def _grid(cells: Mapping[Cell, Served], chosen: Mapping[str, Served]) -> HeatmapGrid:
    """Return the grid of all measured or chosen points, and of as many predicted ones as can be distinguished."""
    kept = [cell for cell, served in cells.items() if served.source is not LatencySource.PREDICTED]
    kept += [(served.point.batch_size, served.point.threads) for served in chosen.values()]
    batches, threads = ({cell[side] for cell in cells} for side in (0, 1))
    return HeatmapGrid(
        _thinned(batches, {cell[0] for cell in kept}, COLUMNS), _thinned(threads, {cell[1] for cell in kept}, ROWS)
    )


def _thinned(values: set[int], kept: set[int], most: int) -> list[int]:
    others = sorted(values - kept)
    if len(values) <= most or not others:
        return sorted(values)
    every = math.ceil(len(others) / max(most - len(kept), 2))
    return sorted(kept | set(others[::every]) | {max(values)})


def _drawing(cells: Mapping[Cell, Served], chosen: Mapping[str, Served], grid: HeatmapGrid) -> Markup:
    letters: dict[Cell, list[str]] = {}
    for purpose, served in chosen.items():
        letters.setdefault((served.point.batch_size, served.point.threads), []).append(purpose)
    parts, rings = [*_axes(grid)], []
    rates = [served.throughput_per_s for served in cells.values()]
    for cell in ((batch, threads) for batch in grid.batches for threads in grid.threads):
        x, y = grid.corner(cell)
        box = {"x": x + 1, "y": y + 1, "width": grid.cell_width - 2, "height": grid.cell_height - 2, "rx": 3}
        if cell not in cells:
            parts.append(element("rect", class_="cell none", **box))
            continue
        served, purposes = cells[cell], letters.get(cell, [])
        color = _shade(served.throughput_per_s, min(rates), max(rates))
        hatched = served.source is LatencySource.PREDICTED
        inside = [element("rect", class_=f"cell {color}", **box)]
        inside += [
            element("path", class_="hatch", d=hatching(x + 1, y + 1, grid.cell_width - 2, grid.cell_height - 2))
        ] * hatched
        # Rings are drawn last, above the neighbors, on a band that separates them from any color below.
        rings += [element("rect", class_=kind, **box) for kind in ("ring band", "ring") if purposes]
        inside += _figures(served, purposes, grid, x, y, color)
        parts.append(element("g", tooltip(point_tooltip(served, purposes)), *inside, data_cell=f"{cell[0]}x{cell[1]}"))
    return picture(WIDTH, grid.bottom + 38, "samples per second by batch size and threads", [*parts, *rings])


def _axes(grid: HeatmapGrid) -> Iterator[Markup]:
    yield text(0, 14, "threads", class_="axis")
    for threads in grid.threads:
        y = grid.corner((grid.batches[0], threads))[1] + grid.cell_height / 2 + 4
        yield text(LEFT - 8, y, str(threads), class_="tick", text_anchor="end")
    end = LEFT - LETTER
    for batch in grid.batches:
        middle, width = grid.corner((batch, grid.threads[0]))[0] + grid.cell_width / 2, len(str(batch)) * LETTER
        if middle - width / 2 >= end + LETTER / 2:  # labels do not touch
            yield text(middle, grid.bottom + 16, str(batch), class_="tick", text_anchor="middle")
            end = middle + width / 2
    yield text(
        LEFT + grid.cell_width * len(grid.batches), grid.bottom + 34, "batch size", class_="axis", text_anchor="end"
    )


def _figures(
    served: Served, purposes: Sequence[str], grid: HeatmapGrid, x: float, y: float, color: str
) -> Iterator[Markup]:
    """Draw the throughput of a cell and what it was chosen for, if there is room."""
    rate, marks = _brief(served.throughput_per_s), " ".join(purpose[0].upper() for purpose in purposes)
    roomy = grid.cell_width >= 6 * LETTER
    middle, base = x + grid.cell_width / 2, y + grid.cell_height / 2 + 4
    if marks:
        yield text(middle, base - 7 * roomy, marks, class_=f"mark on-{color}", text_anchor="middle")
    if roomy:
        yield text(middle, base + 7 * bool(marks), rate, class_=f"rate on-{color}", text_anchor="middle")


def point_tooltip(served: Served, purposes: Sequence[str] = ()) -> str:
    """Return all that is known about a served point, line by line, with the source of each number."""
    interval = f"{quantities.duration(served.low_s)} to {quantities.duration(served.high_s)}"
    joules = served.energy_per_sample_j
    energy = "energy unknown" if joules is None else f"{quantities.joules(joules)} a sample ({energy_source(served)})"
    memory = "" if served.memory_bytes is None else f", {quantities.size(served.memory_bytes)} of memory"
    lines = [
        str(served.point),
        f"{quantities.number(_rounded(served.throughput_per_s))} samples per second, {energy}{memory}",
        f"a batch takes {quantities.duration(served.latency_s)} ({interval}), p99 {quantities.duration(served.p99_s)}",
        served.source.value + (f", {quantities.count(served.runs, 'run')}" if served.runs else ""),
    ]
    return "\n".join([*lines, *([f"chosen for {' and '.join(purposes)}"] if purposes else [])])


def hatching(x: float, y: float, wide: float, tall: float) -> str:
    """Return the path of diagonal lines inside a box. An SVG pattern would need an id that is unique on the page."""
    lines = []
    for step in range(1, math.ceil((wide + tall) / HATCH)):
        along = step * HATCH  # from the upper left corner, along the upper edge and then down the right one
        start = (x + min(along, wide), y + max(0.0, along - wide))
        end = (x + max(0.0, along - tall), y + min(along, tall))
        lines.append(f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}")
    return "".join(lines)


def _shade(value: float, low: float, high: float) -> str:
    """Return the color of a value on a logarithmic scale."""
    return shade(math.log(value / low) / math.log(high / low)) if high > low else shade(1 - 1 / SHADES)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _brief(value: float) -> str:
    """Format a throughput in about five characters."""
    for least, size, unit in ((999.5e3, 1e6, "M"), (9.995e3, 1e3, "k")):
        if value >= least:
            return f"{value / size:.3g}{unit}"
    return quantities.number(_rounded(value))
