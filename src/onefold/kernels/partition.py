"""Splits a model that TVM compiles only in part: one part for TVM, what comes before and after it for onnxruntime.

A node belongs to a stage: stages that TVM supports have even numbers, the others odd ones, and a node's stage is at
least that of what it depends on. The even stage with the most arithmetic is compiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onefold.agent.inference_session import open_inference_session
from onefold.device.operator_costs import OperatorCost
from onefold.device.roofline import operator_costs
from onefold.device.session_options import session_options
from onefold.kernels.kernel_library import AFTER, BEFORE, PartTensors
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint

if TYPE_CHECKING:
    import onnx

MIN_SHARE = 0.25  # of the model's arithmetic that TVM must be able to compile
# The shapes of their outputs depend on data, or they contain graphs of their own.
DATA_DEPENDENT = {"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "Unique"}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Partition:
    """The parts of a model as ONNX files."""

    compiled: Path  # with static shapes
    before: Path | None
    after: Path | None
    tensors: PartTensors


def split_model(model: Path, inputs: Mapping[str, Array], unsupported: Collection[str], folder: Path) -> Partition:
    """Split a model around the operators that TVM does not support.

    Args:
        model: An ONNX file without external weights.
        inputs: One batch of inputs by name, which determines the shapes.
        unsupported: Kinds of operators that TVM does not support.
        folder: Where to write the parts.

    Raises:
        ModelError: TVM would compile too little; the message is the reason.
    """
    import onnx

    loaded = onnx.load(str(model))
    nodes, constants = _without_constants(loaded.graph)
    stages = _stages(nodes, unsupported)
    _check_is_divisible(loaded.graph, stages)
    work = _work_by_node(model, nodes, len(next(iter(inputs.values()))))
    flops = dict.fromkeys(range(0, max(stages.values(), default=0) + 1, 2), 0.0)
    for node in nodes:
        if stages[id(node)] in flops:
            flops[stages[id(node)]] += work[id(node)]
    chosen = max(flops, key=lambda stage: (flops[stage], -stage))
    total = sum(work.values())
    if not flops[chosen] >= MIN_SHARE * total > 0:
        share = flops[chosen] / total if total else 0.0
        raise ModelError(f"the largest part that TVM can compile has {share:.0%} of the model's arithmetic")
    parts = [
        [node for node in nodes if stages[id(node)] < chosen],
        [node for node in nodes if stages[id(node)] == chosen],
        [node for node in nodes if stages[id(node)] > chosen],
    ]
    results = [output.name for output in loaded.graph.output]
    needed = [_needed_later(part, parts[at + 1 :], results) for at, part in enumerate(parts)]
    taken = [_taken(part, set(constants)) for part in parts]
    values = _values(loaded, inputs, {name for names in (*needed, *taken) for name in names})
    batch_size = len(next(iter(inputs.values())))
    if any(values[name].shape[:1] != (batch_size,) for name in results):
        raise ModelError("its outputs do not have the batch first")
    files = []
    for at, name in enumerate((BEFORE, "compiled.onnx", AFTER)):
        part = _extract(loaded, parts[at], constants, taken[at], needed[at], values, is_static=at == 1)
        if parts[at]:
            onnx.save(part, str(folder / name))
        files.append(folder / name if parts[at] else None)
    before, compiled, after = files
    if compiled is None:
        raise ModelError("TVM can compile no part of it")
    tensors = PartTensors(tuple(inputs), tuple(taken[1]), tuple(needed[1]), tuple(results))
    return Partition(compiled, before, after, tensors)


def _check_is_divisible(graph: Any, stages: Mapping[int, int]) -> None:
    """Raise ModelError if a part would have dynamic shapes, or would be the whole model."""
    for value in graph.input:
        if any(size.dim_value <= 0 for size in value.type.tensor_type.shape.dim[1:]):
            raise ModelError(f"input {value.name!r} has dynamic dimensions besides the batch")
    if not any(stages.values()):
        raise ModelError("no operator is known to be the reason")


def _without_constants(graph: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the nodes that are no constants, and what has constant tensors by name: initializers and nodes."""
    constants: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node
        else:
            nodes.append(node)
    return nodes, constants


def _stages(nodes: Sequence[Any], unsupported: Collection[str]) -> dict[int, int]:
    """Return the stage of each node by its id."""
    stages: dict[int, int] = {}
    makers: dict[str, Any] = {}
    dependent: set[str] = set()  # tensors whose shapes depend on data
    for node in nodes:
        sources = [makers[name] for name in node.input if name in makers]
        is_dependent = node.op_type in DATA_DEPENDENT or any(name in dependent for name in node.input)
        parity = int(is_dependent or node.op_type in unsupported)
        stages[id(node)] = max(
            [parity, *(stages[id(source)] + (stages[id(source)] % 2 != parity) for source in sources)]
        )
        makers |= dict.fromkeys(node.output, node)
        dependent |= set(node.output) if is_dependent else set()
    return stages


def _work_by_node(model: Path, nodes: Sequence[Any], batch_size: int) -> dict[int, float]:
    """Return the FLOPs of each node by its id: costs come in the order of the nodes, without those that are folded."""
    work: dict[int, float] = {}
    left = list(operator_costs(model, batch_size))
    for node in nodes:
        at = next((at for at, cost in enumerate(left) if _is_cost_of(cost, node)), None)
        work[id(node)] = 0.0 if at is None else left.pop(at).flops
    return work


def _is_cost_of(cost: OperatorCost, node: Any) -> bool:
    return cost.kind == node.op_type and (not node.name or cost.name == node.name)


def _needed_later(part: Iterable[Any], later: Iterable[Iterable[Any]], results: Collection[str]) -> list[str]:
    """Return the outputs of a part that later parts or the caller need."""
    wanted = {name for nodes in later for node in nodes for name in node.input} | set(results)
    return [name for node in part for name in node.output if name in wanted and name]


def _taken(part: Iterable[Any], constants: set[str]) -> list[str]:
    """Return what a part takes from the model's inputs or earlier parts."""
    nodes = list(part)
    own = {name for node in nodes for name in node.output} | constants
    return list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in own))


def _values(loaded: onnx.ModelProto, inputs: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
    """Return the values of tensors for these inputs."""
    import onnx

    open_model = onnx.ModelProto()
    open_model.CopyFrom(loaded)
    wanted = sorted(set(names) - set(inputs))
    del open_model.graph.output[:]
    open_model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in wanted)
    session = open_inference_session(open_model.SerializeToString(), session_options(ServingPoint()))
    given = {value.name: inputs[value.name] for value in session.get_inputs()}
    return {**inputs, **dict(zip(wanted, session.run(wanted, given)))}


def _extract(
    loaded: onnx.ModelProto, part: Sequence[Any], constants: Mapping[str, Any], taken: Sequence[str],
    made: Sequence[str], values: Mapping[str, Array], *, is_static: bool,
) -> onnx.ModelProto:  # fmt: skip
    """Return a part as a model: with the shapes of these values, or with the dynamic ones of onnxruntime."""
    import onnx

    def describe(name: str) -> Any:
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        shape = list(values[name].shape) if is_static else [None] * values[name].ndim
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    used = {name for node in part for name in node.input} & constants.keys()
    tensors = [constants[name] for name in sorted(used)]
    graph = onnx.helper.make_graph(
        [*(tensor for tensor in tensors if isinstance(tensor, onnx.NodeProto)), *part],
        loaded.graph.name or "part",
        [describe(name) for name in taken],
        [describe(name) for name in made],
        [tensor for tensor in tensors if isinstance(tensor, onnx.TensorProto)],
    )
    model = onnx.helper.make_model(graph, opset_imports=loaded.opset_import, ir_version=loaded.ir_version)
    model.functions.extend(loaded.functions)
    return model
