"""Published latencies on ARM boards against those emulated from the figures of the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import torch

from emulations import processor_time
from emulations.carry_over import RECORDINGS, graph_costs, predictor, summary
from emulations.published_networks import NETWORKS
from onefold.device import Device
from onefold.device.catalog import device
from onefold.serving.export import export

PIXELS = {"squeezenet": 227}


def write_networks(folder: Path, names: list[str]) -> list[Path]:
    """Export the networks."""
    models = []
    for name in names:
        torch.manual_seed(0)
        pixels = PIXELS.get(name, 224)
        models.append(export(NETWORKS[name]().eval(), [torch.randn(1, 3, pixels, pixels)], folder / f"{name}.onnx"))
    return models


def compare(folder: Path, host: Device, rounds: int) -> list[dict[str, Any]]:
    """Return, for each board and number of threads, the rank correlation over networks and the errors."""
    from scipy.stats import spearmanr

    published = json.loads((RECORDINGS / "ncnn-arm.json").read_text())["points"]
    models = write_networks(folder, list(NETWORKS))
    here = processor_time.latencies(models, (1,), rounds)
    costs = graph_costs([(model, {}) for model in models], (1,))
    rows = []
    for name, threads in sorted({(point["device"], point["threads"]) for point in published}):
        points = [point for point in published if (point["device"], point["threads"]) == (name, threads)]
        board = device(name).at_frequency(points[0]["frequency_ghz"])
        predict = predictor(costs, here, host, board)
        real = [point["latency_s"] for point in points]
        emulated = [predict((point["model"], 1, threads)) for point in points]
        ratios = [a / b for a, b in zip(emulated, real)]
        scale = median(ratios)
        found, scaled = summary([ratio - 1 for ratio in ratios]), summary([ratio / scale - 1 for ratio in ratios])
        rows.append(
            {"board": name, "threads": threads, "networks": len(points), "rank": float(spearmanr(real, emulated)[0]),
             "median error": found["median"], "bias": found["bias"], "after one factor": scaled["median"]}
        )  # fmt: skip
    return rows
