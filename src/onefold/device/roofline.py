"""A roofline model of a device: the time of an operator from its FLOPs and memory traffic.

    seconds = max(flops / compute, bytes / bandwidth) + dispatch overhead

The model does not predict latencies by itself. The emulator uses the ratio between two devices, by which it scales a
latency that was measured on one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from onefold.device.device import Device
from onefold.device.onnx_graph import NO_SHAPES, Shapes, read_nodes
from onefold.device.operator_costs import OperatorCost, operator_cost
from onefold.vocabulary.errors import DeviceError

__all__ = ["OperatorCost", "latency_ratio", "operator_costs", "operator_time_s", "uncounted_kinds"]


def operator_costs(model: Path, batch_size: int, samples: Shapes = NO_SHAPES) -> tuple[OperatorCost, ...]:
    """Return the cost of each operator of an ONNX file at a batch size, on inputs of the samples' shapes.

    A program of PyTorch counts as one operator that reads its weights. Raises ModelError if it is not a model.
    """
    if model.suffix == ".pt":
        return (OperatorCost(model.name, "Program", 0.0, float(model.stat().st_size), unknown=True),)
    return tuple(
        operator_cost(node.name, node.kind, node.attributes, node.inputs, node.outputs)
        for node in read_nodes(model, batch_size, samples)
    )


def uncounted_kinds(costs: Iterable[OperatorCost]) -> tuple[str, ...]:
    """Return the operator kinds whose FLOPs are unknown, sorted."""
    return tuple(sorted({cost.kind for cost in costs if cost.unknown}))


def operator_time_s(cost: OperatorCost, device: Device, threads: int) -> float:
    """Return the time of an operator on this many threads; threads beyond the device's cores do not help."""
    compute = device.gflops * 1e9 * max(1, min(threads, device.cores))
    return max(cost.flops / compute, cost.moved_bytes / (device.bandwidth_gbps * 1e9)) + device.overhead_us * 1e-6


def latency_ratio(costs: Sequence[OperatorCost], host: Device, target: Device, threads: int) -> float:
    """Return the model's latency on `target` divided by its latency on `host`, both with this many threads."""
    host_s = sum(operator_time_s(cost, host, threads) for cost in costs)
    if not host_s:
        raise DeviceError(f"cannot scale a latency from {host.name} to {target.name}: the model has no operators")
    return sum(operator_time_s(cost, target, threads) for cost in costs) / host_s
