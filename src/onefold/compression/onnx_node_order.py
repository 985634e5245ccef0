"""The same graph in an order that a runtime makes more of."""

from __future__ import annotations

from typing import Any


def move_relu_before_max_pool(model: Any) -> None:
    """Puts a ReLU that follows a max pooling before it, in place.

    The answers are the same, and the runtime can do it within the convolution before it: in integers it costs nothing
    there.
    """
    import onnx

    graph = model.graph
    readers: dict[str, int] = {each.name: 1 for each in graph.output}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    pools = {node.output[0]: node for node in graph.node if node.op_type == "MaxPool" and len(node.output) == 1}
    for relu in graph.node:
        pool = pools.get(relu.input[0]) if relu.op_type == "Relu" else None
        if pool is None or readers[pool.output[0]] > 1:
            continue
        first, second = onnx.NodeProto(), onnx.NodeProto()
        first.CopyFrom(relu)
        second.CopyFrom(pool)
        first.input[0], first.output[0] = pool.input[0], pool.output[0]
        second.input[0], second.output[0] = pool.output[0], relu.output[0]
        pool.CopyFrom(first)
        relu.CopyFrom(second)
    del graph.value_info[:]  # the shapes in between are others now
