"""Write an ONNX file in which each layer has a precision of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onefold.compression.compressor import Samples
from onefold.compression.onnx_attention import attention_weight_operators
from onefold.compression.onnx_preprocessing import quantizer_errors
from onefold.compression.onnx_stored_weights import store_in_int8
from onefold.compression.onnx_weight_blocks import INT4, INT8, large_linear_layers, quantize_linear_layers
from onefold.compression.onnx_weights import WEIGHTED, weighted_operators
from onefold.compression.quantization import quantize_dynamically, quantize_statically

LINEAR, CONVOLUTIONS = ("MatMul", "Gemm"), ("Conv",)
STATIC, DYNAMIC, WEIGHTS_INT8, WEIGHTS_INT4 = "int8", "int8-dynamic", "int8-weight-only", "int4"
BITS = {STATIC: 8.0, DYNAMIC: 8.0, WEIGHTS_INT8: 8.0, WEIGHTS_INT4: 5.0}  # per weight, with the scales of blocks


class PrecisionAssembly:
    """Assemble variants of a preprocessed model, in whose folder the calibration is kept."""

    def __init__(self, model: Path, samples: Samples) -> None:
        import onnx

        self._model, self._samples = model, samples
        self._graph = onnx.load(str(model))
        self._large = set(large_linear_layers(self._graph))
        self._types = weighted_operators(model)

    def precisions(self, *, for_latency: bool, for_size: bool) -> dict[str, list[str]]:
        """Return the reduced precisions that each layer can have.

        Precisions with integer kernels are for the latency, those of weights alone for the size: they take as few
        bytes and change the outputs less.
        """
        return {layer: self._precisions(layer, kind, for_latency, for_size) for layer, kind in self._types.items()}

    def weight_count(self, layer: str) -> int:
        """Return the number of weights of a layer."""
        node = next(node for node in self._graph.graph.node if node.name == layer)
        return sum(int(np.prod(each.dims)) for each in self._graph.graph.initializer if each.name in node.input)

    def write(self, precisions: Mapping[str, str], target: Path) -> None:
        """Write the model with these precisions; layers that are not named stay in fp32."""
        import onnx

        def layers_in(precision: str) -> list[str]:
            return [layer for layer, each in precisions.items() if each == precision]

        shutil.copyfile(self._model, target)
        with quantizer_errors("mixed"):
            if static := layers_in(STATIC):
                calibration = self._model.with_suffix(".calibration")
                names = [*static, *self._operators_between(static)]
                quantize_statically(self._model, target, self._samples, layers=names, calibration=calibration)
            blocks = dict.fromkeys((layer for layer in layers_in(WEIGHTS_INT8) if layer in self._large), INT8)
            blocks |= dict.fromkeys(layers_in(WEIGHTS_INT4), INT4)
            if blocks:
                model = onnx.load(str(target))
                quantize_linear_layers(model, blocks)
                target.write_bytes(model.SerializeToString(deterministic=True))
            if stored := [layer for layer in layers_in(WEIGHTS_INT8) if layer not in blocks]:
                store_in_int8(target, stored)
            if dynamic := layers_in(DYNAMIC):  # last, since the quantizer renames each Gemm
                quantize_dynamically(target, target, layers=[*dynamic, *(f"{layer}_MatMul" for layer in dynamic)])

    def _precisions(self, layer: str, kind: str, for_latency: bool, for_size: bool) -> list[str]:
        precisions = [WEIGHTS_INT8] if for_size else []
        if for_latency and kind in CONVOLUTIONS:
            precisions = [STATIC]
        if for_latency and kind in LINEAR:
            precisions = [DYNAMIC]
        return [*precisions, WEIGHTS_INT4] if for_size and layer in self._large else precisions

    def _operators_between(self, layers: Sequence[str]) -> list[str]:
        """Return the operators without weights that read nothing but outputs of these layers, directly or not."""
        excluded, included = set(attention_weight_operators(self._graph)), set(layers)
        producers: dict[str, Any] = {output: node for node in self._graph.graph.node for output in node.output}
        found = []
        for node in self._graph.graph.node:  # in topological order
            before = [producers[name].name for name in node.input if name in producers]
            is_between = bool(before) and included.issuperset(before)
            if is_between and node.op_type not in WEIGHTED and node.name not in excluded:
                found.append(node.name)
                included.add(node.name)
        return found
