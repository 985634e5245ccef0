"""Fewer bits for each number of a model, in its ONNX file, as ONNX Runtime computes with them.

`int8`: weights and what flows between layers are integers; how large that gets is calibrated on real samples.
`int8-dynamic`: weights are integers, what flows is made so while it flows; nothing is calibrated, and recurrent layers
can do it too. `fp16`: weights are stored as half-precision numbers and widened when the model is loaded.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.compression.onnx_node_order import move_relu_before_max_pool
from onefold.vocabulary.errors import InputError, ModelError

ENOUGH = 32  # samples to calibrate with
AT_ONCE = 16
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Gather")  # what has weights to quantise
INTEGERS = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM")  # with some
Samples = Mapping[str, NDArray[Any]]


def quantize_onnx(model: Path, target: Path, precision: str, samples: Samples | None = None) -> tuple[str, ...]:
    """Writes the model with this precision; returns the names of the layers that could not be quantised."""
    if precision == "fp16":
        _halve(model, target)
        return ()
    silent = logging.root.manager.disable  # as others want it
    logging.disable(max(silent, logging.WARNING))  # what it says while it works is not for users
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = _prepared(model, Path(folder) / "prepared.onnx")
            if precision == "int8":
                _by_calibration(prepared, target, samples)
            else:
                _on_the_way(prepared, target)
    except (InputError, ModelError):
        raise
    except Exception as error:  # the library raises what it likes
        raise ModelError(f"the model cannot be quantised to {precision}: {_first_line(error)}") from error
    finally:
        logging.disable(silent)
    return unquantized_layers(target)


def _prepared(model: Path, target: Path) -> Path:
    """With shapes worked out and norms folded into the layers before them, as the quantiser wants it."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    graph = onnx.load(str(model))
    move_relu_before_max_pool(graph)
    quant_pre_process(graph, str(target), skip_symbolic_shape=True)
    return target


def _by_calibration(model: Path, target: Path, samples: Samples | None) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    count = min((len(array) for array in samples.values()), default=0) if samples else 0
    if samples is None or count < ENOUGH:
        raise InputError(
            f"int8 is calibrated on real inputs, and {count} samples are too few: give {ENOUGH} at least, or take "
            "int8-dynamic, which needs none"
        )
    quantize_static(
        str(model),
        str(target),
        _reader(samples, count),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"CalibMovingAverage": True},
    )


def _reader(samples: Samples, count: int) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = (
                {name: array[at : at + AT_ONCE] for name, array in samples.items()}
                for at in range(0, count - count % AT_ONCE, AT_ONCE)
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    return Reader()


def _on_the_way(model: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Convolutions that quantise on the way are slower than exact ones: they stay.
    kinds = [kind for kind in WEIGHTED if kind not in ("Conv", "ConvTranspose", "GRU", "RNN")]
    quantize_dynamic(str(model), str(target), op_types_to_quantize=kinds, per_channel=True, weight_type=QuantType.QInt8)


def _halve(model: Path, target: Path) -> None:
    """Stores large weights in half precision, and a cast behind each."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = onnx.load(str(model))
    casts = []
    for place, weight in enumerate(graph.graph.initializer):
        if weight.data_type != TensorProto.FLOAT or np.prod(weight.dims) < ENOUGH:
            continue
        with np.errstate(over="ignore"):
            half = numpy_helper.to_array(weight).astype(np.float16)
        if not np.isfinite(half).all():
            raise ModelError(f"the weights {weight.name} are too large for half precision")
        casts.append(helper.make_node("Cast", [f"{weight.name}.half"], [weight.name], to=TensorProto.FLOAT))
        graph.graph.initializer[place].CopyFrom(numpy_helper.from_array(half, f"{weight.name}.half"))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    target.write_bytes(graph.SerializeToString(deterministic=True))


def unquantized_layers(model: Path) -> tuple[str, ...]:
    """The layers whose weights are floating-point numbers still."""
    import onnx
    from onnx import TensorProto

    graph = onnx.load(str(model)).graph
    exact = {one.name for one in graph.initializer if one.data_type == TensorProto.FLOAT and len(one.dims) > 1}
    return tuple(
        f"{node.op_type} {node.name}".strip()
        for node in graph.node
        if node.op_type in WEIGHTED and any(name in exact for name in node.input)
    )


def weight_sparsity(model: Path) -> float:
    """The share of the weights in a model's file that are zero: of matrices and kernels, not of biases."""
    import onnx
    from onnx import numpy_helper

    zeros = count = 0
    for weight in onnx.load(str(model)).graph.initializer:
        if len(weight.dims) > 1:
            values = numpy_helper.to_array(weight)
            zeros, count = zeros + int((values == 0).sum()), count + values.size
    return zeros / count if count else 0.0


def operator_density(model: Path) -> Mapping[str, float]:
    """By operator: the share of its weights that are not zero; those without weights are left out."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(model)).graph
    weights = {one.name: one for one in graph.initializer if len(one.dims) > 1}
    behind = {node.output[0]: node.input[0] for node in graph.node if node.op_type in ("DequantizeLinear", "Cast")}
    found = {}
    for node in graph.node:
        read = [weights[name] for name in (behind.get(each, each) for each in node.input) if name in weights]
        if node.op_type in (*WEIGHTED, *INTEGERS) and read:
            values = [numpy_helper.to_array(one) for one in read]
            there = sum(int(np.count_nonzero(each)) for each in values)
            found[node.name or f"{node.op_type}:{node.output[0]}"] = there / sum(each.size for each in values)
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
