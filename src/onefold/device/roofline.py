"""A roofline model of a device: the time of an operator from its FLOPs and memory traffic.

    seconds = max(flops / compute, bytes / bandwidth) + dispatch overhead

Compute and bandwidth are those that the probe measured for operators of the same group, if it ran on both devices;
otherwise one figure of each covers all operators. The model does not predict latencies by itself. The emulator uses the
ratio between two devices, by which it scales a latency that was measured on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from onefold.device.device import Device
from onefold.device.onnx_graph import NO_SHAPES, Shapes, read_nodes
from onefold.device.operator_costs import OperatorCost, operator_cost
from onefold.device.operator_groups import COMPUTE_GROUPS, STREAM, without_int8
from onefold.vocabulary.errors import DeviceError

__all__ = [
    "OperatorCost",
    "comparable",
    "latency_ratio",
    "operator_costs",
    "operator_time_s",
    "thread_speed",
    "uncounted_kinds",
]

CACHED_BYTES, STREAMED_BYTES = 2e6, 64e6  # of operators that run from the caches, and that do not
THREADED_FLOPS = 2 * 384**3  # of the matrix product by which the probe measures the speed of threads
_CACHED = "add"  # the group whose rate is that of the caches


def operator_costs(model: Path, batch_size: int, samples: Shapes = NO_SHAPES) -> tuple[OperatorCost, ...]:
    """Return the cost of each operator of an ONNX file at a batch size, on inputs of the samples' shapes.

    A program of PyTorch counts as one operator that reads its weights. Raises ModelError if it is not a model.
    """
    if model.suffix == ".pt":
        return (OperatorCost(model.name, "Program", 0.0, float(model.stat().st_size), unknown=True),)
    return tuple(
        operator_cost(node.name, node.kind, node.attributes, node.inputs, node.outputs, is_quantized=node.is_quantized)
        for node in read_nodes(model, batch_size, samples)
    )


def uncounted_kinds(costs: Iterable[OperatorCost]) -> tuple[str, ...]:
    """Return the operator kinds whose FLOPs are unknown, sorted."""
    return tuple(sorted({cost.kind for cost in costs if cost.unknown}))


def thread_speed(device: Device, threads: int) -> float:
    """Return the speed of this many threads relative to one; threads beyond the device's cores do not help."""
    useful = max(1, min(threads, device.cores))
    measured = dict(device.thread_speed)
    if not measured:
        return float(useful)
    if useful in measured:
        return measured[useful]
    below = max((count for count in measured if count < useful), default=None)
    above = min((count for count in measured if count > useful), default=None)
    if below is None or above is None:
        return measured[above if below is None else below]  # type: ignore[index]
    share = (useful - below) / (above - below)
    return measured[below] + share * (measured[above] - measured[below])


def operator_time_s(cost: OperatorCost, device: Device, threads: int) -> float:
    """Return the time of an operator on this many threads; it runs on one where waking more takes longer."""
    useful = 1 if cost.is_serial else max(1, min(threads, device.cores))
    busy_s = _busy_s(cost, device, useful) + _wake_s(device, useful)
    return min(busy_s, _busy_s(cost, device, 1)) + device.overhead_us * 1e-6


def _busy_s(cost: OperatorCost, device: Device, threads: int) -> float:
    rates = dict(device.operator_rates)
    rate = _rate(cost.group, device, rates)
    if rate is None:
        compute = (_int8_gain(cost.group, device) * device.gflops) * 1e9 * threads
        return max(cost.flops / compute, cost.moved_bytes / (device.bandwidth_gbps * 1e9))
    if without_int8(cost.group) not in COMPUTE_GROUPS:
        return _memory_s(cost.moved_bytes, rate, device, rates, threads)
    memory_s = _memory_s(cost.moved_bytes, rates.get(_CACHED), device, rates, threads)
    return max(cost.flops / (rate * 1e9 * threads), memory_s)


def _wake_s(device: Device, threads: int) -> float:
    """Return what an operator on several threads takes longer than its share of the work, as the probe measured it."""
    if threads == 1 or not device.thread_speed:
        return 0.0
    reference_s = THREADED_FLOPS / (device.gflops * 1e9)
    return max(0.0, reference_s * (1 / thread_speed(device, threads) - 1 / threads))


def _rate(group: str, device: Device, rates: dict[str, float]) -> float | None:
    """Return the rate of a group of operators; that of int8 may follow from the one in floating point."""
    base = without_int8(group)
    if group in rates or base not in rates:
        return rates.get(group)
    return rates[base] * (_int8_gain(group, device) if base in COMPUTE_GROUPS else 1.0)


def _int8_gain(group: str, device: Device) -> float:
    is_int8 = group != without_int8(group)
    return device.int8_gops / device.gflops if is_int8 and device.int8_gops else 1.0


def _memory_s(moved_bytes: float, cached: float | None, device: Device, rates: dict[str, float], threads: int) -> float:
    """Return the time to move these bytes at the rate of the caches, that of memory, or one in between."""
    if cached is None:
        return moved_bytes / (device.bandwidth_gbps * 1e9)
    rate = cached * threads
    if STREAM in rates and moved_bytes > CACHED_BYTES:
        stream = min(rate, max(rates[STREAM], min(rates[STREAM] * threads, device.bandwidth_gbps)))
        share = min(1.0, math.log(moved_bytes / CACHED_BYTES) / math.log(STREAMED_BYTES / CACHED_BYTES))
        rate = rate ** (1 - share) * stream**share
    return moved_bytes / (rate * 1e9)


def comparable(host: Device, target: Device, host_threads: int = 0) -> tuple[Device, Device]:
    """Return both devices without the figures that only one of them has.

    The speed of the host's threads is not needed if it runs one of them.
    """
    groups = dict(host.operator_rates).keys() & dict(target.operator_rates).keys()
    has_int8 = bool(host.int8_gops and target.int8_gops)
    has_calls = bool(host.call_us and target.call_us)
    has_threads = bool(target.thread_speed and (host.thread_speed or host_threads == 1))
    first, second = (
        replace(
            device,
            operator_rates=tuple((name, rate) for name, rate in device.operator_rates if name in groups),
            int8_gops=device.int8_gops if has_int8 else None,
            call_us=device.call_us if has_calls else 0.0,
            thread_speed=device.thread_speed if has_threads else (),
        )
        for device in (host, target)
    )
    return first, second


def latency_ratio(
    costs: Sequence[OperatorCost], host: Device, target: Device, threads: int, host_threads: int | None = None
) -> float:
    """Return the model's latency on `target` with this many threads, divided by its latency on `host`.

    The host has as many threads, or `host_threads`.
    """
    counts = (host_threads or threads, threads)
    pair = comparable(host, target, counts[0])
    host_s, target_s = (
        device.call_us * 1e-6 + sum(operator_time_s(cost, device, count) for cost in costs)
        for device, count in zip(pair, counts)
    )
    if not costs or not host_s:
        raise DeviceError(f"cannot scale a latency from {host.name} to {target.name}: the model has no operators")
    return target_s / host_s
