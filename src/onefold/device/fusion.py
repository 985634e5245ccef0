"""Operators of a file and what ONNX Runtime made of them: which of them it measured as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onefold.device.counting import Operator

_BLOCKED = "_nchwc"  # ends the names of convolutions, poolings and sums whose layout it changed


def fused(ops: Sequence[Operator], measured: Mapping[str, float]) -> list[tuple[Operator, float | None]]:
    """Operators with their measured seconds, where those that ONNX Runtime runs as one are one here, too.

    It names a fused operator by its first node (`/conv/Conv`, `fused /fc/Gemm`) or, where it changed the layout, by
    its last tensor (`/relu/Relu_output_0_nchwc`). Measured names that no operator of the file has (changes of layout)
    are left out; operators of the file that belong to no measured one stay alone, with None for seconds.
    """
    made_by = {name: place for place, op in enumerate(ops) for name in op.writes}
    heads = _heads(ops, measured, made_by)
    owner = _owners(ops, made_by, heads)
    parts = {place: replace(ops[place], flops=0.0, moved_bytes=0.0) for place in heads}
    for place, head in owner.items():
        part, op = parts[head], ops[place]
        parts[head] = replace(part, flops=part.flops + op.flops, moved_bytes=part.moved_bytes + op.moved_bytes)
    alone: list[tuple[Operator, float | None]] = [(op, None) for place, op in enumerate(ops) if place not in owner]
    return alone + [(part, heads[place][0]) for place, part in parts.items()]


def _heads(
    ops: Sequence[Operator], measured: Mapping[str, float], made_by: Mapping[str, int]
) -> dict[int, tuple[float, bool]]:
    """By the operator that a measured name stands for: its seconds, and whether the name is that of its last tensor."""
    by_name = {op.name: place for place, op in enumerate(ops)}
    heads: dict[int, tuple[float, bool]] = {}
    for key, time_s in measured.items():
        ends = key.endswith(_BLOCKED)
        place = made_by.get(key.removesuffix(_BLOCKED)) if ends else by_name.get(key.removeprefix("fused "))
        if place is not None:
            heads[place] = heads.get(place, (0.0, False))[0] + time_s, ends
    return heads


def _owners(
    ops: Sequence[Operator], made_by: Mapping[str, int], heads: Mapping[int, tuple[float, bool]]
) -> dict[int, int]:
    """By operator, the measured one that it is part of."""
    owner = {place: place for place in heads}
    for head, (_, ends) in heads.items():  # what came before in an operator that is named by its end
        place = _source(ops[head], made_by) if ends else None
        while place is not None and place not in owner:
            owner[place] = head
            place = _source(ops[place], made_by)
    for place, op in enumerate(ops):  # what came after in one that is named by its beginning; sources stand first
        source = _source(op, made_by)
        if place not in owner and source is not None and source in owner:
            owner[place] = owner[source]
    return owner


def _source(op: Operator, made_by: Mapping[str, int]) -> int | None:
    """The operator whose output it works on."""
    return next((made_by[name] for name in op.reads if name in made_by), None)
