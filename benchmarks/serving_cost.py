"""The overhead of serving measurements: the same study with and without a device.

A text CNN on AG News with the same seeds and trials, interleaved. With a device, every architecture is exported and
measured on this machine while the trials train, and the winner is measured precisely and deployed. A second study over
the same architectures must measure nothing. This machine is calibrated beforehand.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, Stopwatch, arguments, conclude, table

from onefold import Budget, ParallelismOptions, Study
from onefold.device.host import host

MAX_WALL_TIME = 1.08  # relative to the study without a device


def run(workload: str, trials: int, seed: int, home: Path, device: tuple[str, ...]) -> dict[str, Any]:
    """Run a study; return its wall time and how many architectures it measured."""
    surfaces: list[dict[str, Any]] = []

    def collect(event: Any) -> None:
        if event.kind == "served":
            surfaces.append(event.facts())

    study = Study(
        workload,
        budget=Budget(trials=trials),
        seed=seed,
        home=home,
        device=device,
        on_event=collect,
        parallelism=ParallelismOptions(parallel=2, threads=1),
    )
    with Stopwatch() as watch:
        result = study.run()
    measured = [facts for facts in surfaces if not facts["recalled"]]
    return {
        "seed": seed,
        "inference tuner": "on" if device else "off",
        "wall s": watch.seconds,
        "measured": len(measured),
        "recalled": len(surfaces) - len(measured),
        "paused s": sum(facts["measured_s"] for facts in measured),
        "accuracy": result.metrics["accuracy"],
    }


def main() -> None:
    options = arguments(__doc__)
    workload, trials, seeds = ("agnews-cnn", 6, [0]) if options.quick else ("agnews-cnn", 18, [0, 1, 2])
    rows: list[dict[str, Any]] = []
    ratios, repeated = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            host(home / "devices")
            off = run(workload, trials, seed, home, ())
            on = run(workload, trials, seed, home, ("host",))
            second = run(workload, trials, seed, home, ("host",)) if seed == seeds[0] else None
        rows += [off, on, *([second] if second else [])]
        ratios.append(on["wall s"] / off["wall s"])
        repeated += [second["measured"]] if second else []
        table(rows[-3:])
    table(rows)
    ratio = median(ratios)
    claims = [
        Claim("wall time with the inference tuner on", f"<= {MAX_WALL_TIME}x", f"{ratio:.3f}x", ratio <= MAX_WALL_TIME),
        Claim("measurements of a second study over known architectures", "0", str(sum(repeated)), sum(repeated) == 0),
    ]
    conclude("serving_cost", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
