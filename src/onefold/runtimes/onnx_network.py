"""An ONNX graph as a PyTorch network, for converters that start from PyTorch.

Values are tensors, and integers or lists of them where a graph computes with shapes. What depends on constants alone is
computed when the network is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from onefold.agent.inference_session import open_inference_session
from onefold.processes import scratch_folder
from onefold.runtimes.onnx_operators import OPERATORS, Call
from onefold.runtimes.onnx_weights import with_ordered_weights
from onefold.vocabulary.errors import ModelError

STANDARD_DOMAINS = ("", "ai.onnx")


class OnnxNetwork(torch.nn.Module):
    """A network that computes the nodes of an ONNX graph in their order. Raises ModelError for unknown operators."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        unknown = sorted({_kind(node) for node in graph.node} - set(OPERATORS))
        if unknown:
            raise ModelError(f"the converter has no equivalent of the ONNX operators {', '.join(unknown)}")
        self._buffer_names: dict[str, str] = {}
        self._constants: dict[str, np.ndarray[Any, Any]] = {}  # for arguments that must be known, such as axes
        for tensor in graph.initializer:
            self._keep(tensor.name, numpy_helper.to_array(tensor))
        self._inputs = [value.name for value in graph.input if value.name not in self._buffer_names]
        self._outputs = [value.name for value in graph.output]
        self._nodes: list[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]] = []
        with torch.no_grad():
            for node in graph.node:
                self._add(node)

    @classmethod
    def read(cls, model: Path) -> OnnxNetwork:
        """Return the network of an ONNX file, for one sample. Raises ModelError."""
        return cls(_simplified(model).graph).eval()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the output, or a tuple of several."""
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for kind, given, made, attributes in self._nodes:
            results = OPERATORS[kind](self._call(values, given, made, attributes))
            values |= zip(made, results if isinstance(results, tuple) else (results,))
        outputs = tuple(self._value(values, name) for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _add(self, node: Any) -> None:
        """Add a node, or keep its results if they are constants."""
        attributes: Mapping[str, Any] = {
            attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
        }
        given, made = list(node.input), list(node.output)
        if any(name and name not in self._buffer_names for name in given):
            kind, given, attributes = with_ordered_weights(_kind(node), given, attributes, self._constants, self._keep)
            self._nodes.append((kind, given, made, attributes))
            return
        results = OPERATORS[_kind(node)](self._call({}, given, made, attributes))
        for name, result in zip(made, results if isinstance(results, tuple) else (results,)):
            self._keep(name, np.asarray(result))

    def _keep(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self._constants[name] = array
        self._buffer_names[name] = f"constant{len(self._buffer_names)}"
        self.register_buffer(self._buffer_names[name], torch.from_numpy(np.array(array)))

    def _call(
        self, values: Mapping[str, Any], given: Sequence[str], made: Sequence[str], attributes: Mapping[str, Any]
    ) -> Call:
        arguments = tuple(self._value(values, name) if name else None for name in given)
        known = tuple(self._constants.get(name) for name in given)
        return Call(arguments, known, attributes, len(made))

    def _value(self, values: Mapping[str, Any], name: str) -> Any:
        return values[name] if name in values else getattr(self, self._buffer_names[name])


def _kind(node: Any) -> str:
    return str(node.op_type) if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


def _simplified(model: Path) -> Any:
    """Return a model for one sample with constants folded, and with them what is computed from shapes."""
    import onnxruntime

    content = onnx.load(str(model))
    for value in content.graph.input:
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    for value in (*content.graph.output, *content.graph.value_info):
        value.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with scratch_folder() as folder:
        options.optimized_model_filepath = str(folder / "simplified.onnx")
        try:
            open_inference_session(content.SerializeToString(), options)
        except Exception as error:  # ONNX Runtime raises many types
            raise ModelError(f"the model cannot be simplified: {error}") from error
        return onnx.load(options.optimized_model_filepath)
