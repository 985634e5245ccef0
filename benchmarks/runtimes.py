"""The recommended runtime of six networks, with one and with two threads, measured again by hand.

`onefold.measure` compares all runtimes that are installed and recommends one. Then each runtime that keeps the
requirements is loaded from the deployment folder by `onefold.deploy.load(folder, runtime=…)`, and its call is timed: in
a process of its own, all of them in turns, in several rounds with the order reversed in every other one. The median of
the rounds counts. The recommendation holds if no other runtime is faster by more than the noise: the difference between
the medians of two halves of the rounds.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, arguments, conclude, table
from claims.networks import NAMES, exported

import onefold
from onefold.runtimes.race import call_timer
from onefold.serving import deploy
from onefold.serving.runtime_selection import batch_for
from onefold.serving.scenario_settings import ScenarioSettings

THREADS = (1, 2)
MIN_NOISE = 0.03  # of a latency: differences below are ties on a machine that does nothing else


def measure_again(folder: Path, runtimes: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the latencies of the call that serves one sample, by runtime, measured in turns."""
    latencies: dict[str, list[float]] = {name: [] for name in runtimes}
    with ExitStack() as stack:
        timers = {}
        for name in runtimes:
            served = deploy.load(folder, runtime=name)
            assert isinstance(served, deploy.ServedModel)
            inputs = batch_for(folder / deploy.MODEL, served.model.inputs, 1)
            timers[name] = call_timer(stack, partial(deploy.load, folder, runtime=name), inputs)
        for number in range(rounds):
            for name in runtimes if number % 2 else reversed(runtimes):
                latencies[name].append(timers[name]())
    return latencies


def noise(latencies: list[float]) -> float:
    """Return the difference between the medians of two halves of the rounds, relative to the median of all."""
    halves = median(latencies[::2]), median(latencies[1::2])
    return max(MIN_NOISE, abs(halves[0] - halves[1]) / median(latencies))


def compare(name: str, threads: int, folder: Path, rounds: int, runtimes: tuple[str, ...]) -> dict[str, Any]:
    """Return whether the recommended runtime is the fastest for a network with this number of threads."""
    model = exported(name, folder)
    space = onefold.ServingSpace(batch_sizes=(1,), threads=(threads,))
    serving = onefold.ServingOptions("latency", space=space, scenarios=("single-stream",), runtimes=runtimes)
    target = folder / f"{name}-{threads}"
    settings = onefold.measure(model, serving=serving, save=target).on()
    choice: ScenarioSettings = settings.choices[0]
    eligible = [result.runtime for result in settings.runtimes if not result.reason]
    latencies = measure_again(target, eligible, rounds)
    medians = {runtime: median(values) for runtime, values in latencies.items()}
    recommended, fastest = choice.point.runtime, min(medians, key=medians.__getitem__)
    loss = medians[recommended] / medians[fastest] - 1
    allowed = max(noise(latencies[recommended]), noise(latencies[fastest]))
    return {
        "network": name,
        "threads": threads,
        "recommended": recommended,
        "fastest": fastest,
        "slower by": round(loss, 4),
        "noise": round(allowed, 4),
        "holds": recommended == fastest or loss <= allowed,
        "ms": {runtime: round(value * 1e3, 4) for runtime, value in medians.items()},
        "failed": {result.runtime: result.reason for result in settings.runtimes if result.reason},
    }


def main() -> None:
    options = arguments(__doc__)
    names, threads = (NAMES[:2], THREADS[:1]) if options.quick else (NAMES, THREADS)
    runtimes = ("openvino", "ncnn") if options.quick else ("all",)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for count in threads:
                rows.append(compare(name, count, Path(folder), 6 if options.quick else 20, runtimes))
                table([{key: value for key, value in rows[-1].items() if key != "failed"}])
    held = sum(row["holds"] for row in rows)
    exact = sum(row["recommended"] == row["fastest"] for row in rows)
    gain = median(row["ms"]["onnxruntime"] / min(row["ms"].values()) for row in rows)
    claims = [
        Claim(
            "recommended runtime is the fastest, measured again by hand in turns",
            f"{len(rows)} of {len(rows)}",
            f"{held} of {len(rows)} within the noise, {exact} exactly; {gain:.2f}x as fast as onnxruntime (median)",
            held == len(rows),
        )
    ]
    conclude("runtimes", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
