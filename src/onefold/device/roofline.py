"""How long an operator takes on a device, by its compute and its bandwidth, and what that says about another device.

    seconds = max(operations / compute, bytes / bandwidth) + what starting an operator takes

It is not taken for a prediction by itself: what counts is the ratio of two devices, by which a time that was really
measured on the one is carried over to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from onefold.device.device import Device
from onefold.device.onnx_graph import read_nodes
from onefold.device.operator_costs import OperatorCost, work_of
from onefold.vocabulary.errors import DeviceError

__all__ = ["OperatorCost", "latency_ratio", "operator_costs", "seconds", "unknown"]


def operator_costs(model: Path, batch_size: int) -> tuple[OperatorCost, ...]:
    """The operators of an ONNX file in its order, counted at this batch size; ModelError when it is no model."""
    found = []
    for node in read_nodes(model, batch_size):
        work = work_of(node.kind, node.attributes, node.inputs, node.outputs)
        found.append(OperatorCost(node.name, node.kind, work.flops, work.moved_bytes, work.unknown))
    return tuple(found)


def unknown(ops: Iterable[OperatorCost]) -> tuple[str, ...]:
    """The kinds of operators whose operations could not be counted, each once."""
    return tuple(sorted({op.kind for op in ops if op.unknown}))


def seconds(op: OperatorCost, device: Device, threads: int) -> float:
    """How long the operator takes at best on so many threads; threads beyond the device's cores do not help."""
    compute = device.gflops * 1e9 * max(1, min(threads, device.cores))
    return max(op.flops / compute, op.moved_bytes / (device.bandwidth_gbps * 1e9)) + device.overhead_us * 1e-6


def latency_ratio(ops: Sequence[OperatorCost], host: Device, target: Device, threads: int) -> float:
    """The time of the whole model on `target` over its time on `host`, on as many threads, operator by operator."""
    here = sum(seconds(op, host, threads) for op in ops)
    if not here:
        raise DeviceError(f"a factor from {host.name} to {target.name} needs a model that does something, but got none")
    return sum(seconds(op, target, threads) for op in ops) / here
