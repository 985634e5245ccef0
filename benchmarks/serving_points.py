"""The default search over serving points against an exhaustive grid, on six networks.

The grid has every serving point of this machine: 8 batch sizes, every number of threads, 4 graph levels, 2 executions.
The default search covers the same space, for throughput and for latency. The best of a grid is the luckiest of many
noisy measurements, so both best points are measured again, interleaved, and their medians are compared.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, arguments, conclude, table
from claims.networks import NAMES, exported

from onefold.device import Session, TimingEffort, open_session
from onefold.device.host import host
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.vocabulary.serving import OptimizeFor, Served, Surface, best

MAX_LOSS, MAX_SHARE = 0.03, 0.15  # of the grid's best, and of its measurements
GRID = TimingEffort(warm_up_runs=2, min_runs=10, max_runs=400, max_seconds=0.15, precision=0.01)
REPEATED = TimingEffort(warm_up_runs=2, min_runs=10, max_runs=400, max_seconds=0.25, precision=0.005)


def host_session(folder: Path) -> Session:
    """Open a session on this machine."""
    this_machine = host(folder)
    return open_session(this_machine, this_machine)


def search(session: Session, model: Path, optimize_for: OptimizeFor, algorithm: str) -> tuple[Surface, int]:
    """Return the surface and the number of measurements."""
    measured: list[Served] = []
    tuner = ServingTuner(session, serving=PointSearchOptions(optimize_for, algorithm))
    tuner.prepare(model)
    return tuner.measure(model, GRID, measured.append), len(measured)


def remeasure(
    session: Session, model: Path, points: list[Served], optimize_for: OptimizeFor, rounds: int
) -> list[float]:
    """Return the median cost of each point, measured interleaved."""
    costs: list[list[float]] = [[] for _ in points]
    for _ in range(rounds):
        for index, served in enumerate(points):
            costs[index].append(session.serve(model, served.point, REPEATED).cost(optimize_for))
    return [median(values) for values in costs]


def compare(name: str, model: Path, session: Session, rounds: int) -> list[dict[str, Any]]:
    """Compare the default search with the grid on one network."""
    grid, grid_count = search(session, model, OptimizeFor.THROUGHPUT, "grid")
    rows = []
    for optimize_for in (OptimizeFor.THROUGHPUT, OptimizeFor.LATENCY):
        surface, count = search(session, model, optimize_for, "few")
        chosen, ideal = best(surface.served, optimize_for), best(grid.served, optimize_for)
        cost, grid_cost = remeasure(session, model, [chosen, ideal], optimize_for, rounds)
        rows.append(
            {
                "network": name,
                "for": optimize_for.value,
                "grid": grid_count,
                "measured": count,
                "share": count / grid_count,
                "chosen": str(replace(chosen.point, precision="fp32")),
                "chosen ms": cost * 1e3,
                "grid's best": str(ideal.point),
                "grid's ms": grid_cost * 1e3,
                "grid first ms": ideal.cost(optimize_for) * 1e3,
                "worse by": cost / grid_cost - 1,
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__)
    names = NAMES[:2] if options.quick else NAMES
    rounds = 5 if options.quick else 9
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, host_session(Path(folder)) as session:
        for name in names:
            rows += compare(name, exported(name, Path(folder)), session, rounds)
            table([{key: value for key, value in row.items() if key != "grid first ms"} for row in rows[-2:]])
    loss = max(row["worse by"] for row in rows)
    share = max(row["share"] for row in rows)
    claims = [
        Claim(
            "chosen serving point against the grid's best", f"within {MAX_LOSS:.0%}", f"{loss:+.1%}", loss <= MAX_LOSS
        ),
        Claim("measurements against the grid's", f"<= {MAX_SHARE:.0%}", f"{share:.0%}", share <= MAX_SHARE),
    ]
    conclude("serving_points", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
