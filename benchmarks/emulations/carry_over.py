"""Predictions for a machine that was not used to fit: its probe, this machine's latencies, and what it recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from emulations.processor_time import Latencies
from onefold.device import Device
from onefold.device.onnx_graph import Shapes
from onefold.device.probe import device_from_answer
from onefold.device.roofline import OperatorCost, latency_ratio, operator_costs

RECORDINGS = Path(__file__).parent / "recordings"
WITHIN = 0.20
Key = tuple[str, int, int]  # model, batch size, threads
Costs = Mapping[tuple[str, int], Sequence[OperatorCost]]
Predict = Callable[[Key], float]


def recorded(name: str) -> dict[Key, list[float]]:
    """Return the median latency of each visit of a recording."""
    document = json.loads((RECORDINGS / f"{name}.json").read_text())
    return {
        (point["model"], point["batch"], point["threads"]): [visit["median_s"] for visit in point["visits"]]
        for point in document["points"]
    }


def probed(name: str) -> Device:
    """Return the machine of a recording by its probes: the fastest of each figure, since other programs slow down."""
    answers = [json.loads(path.read_text()) for path in sorted(RECORDINGS.glob(f"{name}-probe-*.json"))]
    best: dict[str, Any] = dict(answers[0])
    for figure in ("gflops", "bandwidth_gbps", "bandwidth_of_one_core_gbps"):
        best[figure] = max(answer[figure] for answer in answers)
    best["overhead_us"] = min(answer["overhead_us"] for answer in answers)
    for figure, choose in (("operators", _fastest), ("speed_by_threads", max)):
        best[figure] = {key: choose([answer[figure][key] for answer in answers]) for key in best[figure]}
    return device_from_answer(best, name, name, idle_w=0.0, busy_w=1.0)


def _fastest(operators: Sequence[dict[str, float]]) -> dict[str, float]:
    return min(operators, key=lambda operator: operator["time_s"])


def graph_costs(models: Iterable[tuple[Path, Shapes]], batches: Iterable[int]) -> Costs:
    """Return the costs of the operators of each model at each batch size."""
    sizes = list(batches)
    return {(model.stem, batch): operator_costs(model, batch, shapes) for model, shapes in models for batch in sizes}


def predictor(costs: Costs, here: Latencies, host: Device, target: Device) -> Predict:
    """Return the prediction from one thread on this machine. The least visit counts, since others slow down."""

    def predict(key: Key) -> float:
        model, batch, threads = key
        return min(here[model, batch]) * latency_ratio(costs[model, batch], host, target, threads, host_threads=1)

    return predict


def one_figure_each(device: Device) -> Device:
    """Return the device without what the probe measured of single operators, calls and threads."""
    return replace(device, operator_rates=(), call_us=0.0, thread_speed=(), int8_gops=None)


def errors(predict: Predict, points: Mapping[Key, float]) -> list[float]:
    """Return the relative errors at these points."""
    return [predict(key) / latency_s - 1 for key, latency_s in points.items()]


def summary(found: Sequence[float]) -> dict[str, float]:
    """Return the median and the 90th percentile of absolute errors, the share within 20 %, and the bias."""
    ordered = sorted(map(abs, found))
    return {
        "points": len(found),
        "median": median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "within 20%": sum(error <= WITHIN for error in ordered) / len(ordered),
        "bias": median(found),
    }


def repeatability(visits: Mapping[Key, list[float]]) -> list[float]:
    """Return how far each round is from the median of the others: the error of a machine that predicts itself."""
    return [
        median([*each[:index], *each[index + 1 :]]) / each[index] - 1
        for each in visits.values()
        for index in range(len(each))
    ]


def with_int8_of_others(predict: Predict, points: Mapping[Key, float]) -> Predict:
    """Correct int8 networks by one factor: the median ratio of those of all other families, on one thread."""

    def ratios(family: str) -> list[float]:
        others = [key for key in points if key[0].endswith("-int8") and key[2] == 1 and _family(key) != family]
        return [points[key] / predict(key) for key in others]

    factors = {family: median(ratios(family)) for family in {_family(key) for key in points}}
    return lambda key: predict(key) * (factors[_family(key)] if key[0].endswith("-int8") else 1.0)


def _family(key: Key) -> str:
    return key[0].split("-")[0]
