"""Latencies of torch, onnxruntime and TVM, untuned and tuned, timed in turns."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

import torch

from kernel_comparison.networks import Workspace
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.kernel_library import LIBRARY
from onefold.runtimes.race import ServingProcess
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.serving import ServingPoint

TURNS = 5
TORCH_CALLS, TORCH_WARMUP = 120, 20


def compare_runtimes(workspace: Workspace, network: str, run: str, threads: int) -> dict[str, Any]:
    """Return the lowest latency of each runtime in milliseconds.

    onnxruntime and TVM are timed through the call that serves, in a process each; torch is called with a tensor.

    Args:
        workspace: The networks and folders.
        network: Name of the network.
        run: Name of the run whose deployed library is timed.
        threads: Threads of all runtimes.
    """
    times: dict[str, list[float]] = {"torch": [], "onnxruntime": [], "sleeping": [], "tuned": [], "untuned": []}
    with CandidateRunner(workspace.target(threads)) as runner, ServingProcess() as process:
        compiler = workspace.compiler(network, runner)
        tuned = workspace.deployment(run) / LIBRARY
        untuned = compiler.compile({}, workspace.temporary / f"{network}-{threads}-untuned.so")
        for _ in range(TURNS):
            times["torch"].append(_time_torch(workspace.modules[network], workspace.samples[:1], threads))
            for label, waiting in (("onnxruntime", "spinning"), ("sleeping", "sleeping")):
                opener = partial(ServedModel, workspace.model(network), ServingPoint(1, threads, waiting=waiting))
                times[label].append(median(process.time(opener, compiler.inputs)))
            times["tuned"].append(compiler.time_library(tuned).latency_s)
            times["untuned"].append(compiler.time_library(untuned).latency_s)
    return {"network": network, "threads": threads, **{label: min(values) * 1e3 for label, values in times.items()}}


def _time_torch(network: torch.nn.Module, sample: torch.Tensor, threads: int) -> float:
    """Return the median latency of torch after a warm-up."""
    torch.set_num_threads(threads)
    latencies = []
    with torch.inference_mode():
        for _ in range(TORCH_CALLS):
            started = time.perf_counter()
            network(sample)
            latencies.append(time.perf_counter() - started)
    return median(latencies[TORCH_WARMUP:])
