"""Find the operators of an ONNX graph that compute attention weights."""

from __future__ import annotations

from typing import Any

ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Where")
SHAPING = ("Cast", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def attention_weight_operators(model: Any) -> list[str]:
    """Return the names of the Softmax operators, and of the operators without weights that lead to them.

    They scale scores and add the mask, whose fill value makes the range of their outputs too wide for 8 bits.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    waiting = [node for node in model.graph.node if node.op_type == "Softmax"]
    found: dict[str, None] = {}
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found[node.name] = None
            before = (producers[name] for name in node.input if name in producers)
            waiting += [producer for producer in before if producer.op_type in (*ELEMENTWISE, *SHAPING)]
    return list(found)
