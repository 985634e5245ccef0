"""Quantization of ONNX files with the quantizer of ONNX Runtime: static int8, dynamic int8, and fp16 weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold.compression.compressor import Compressor, Samples
from onefold.compression.fake_quantization import fake_quantization
from onefold.compression.onnx_attention import attention_weight_operators
from onefold.compression.onnx_preprocessing import preprocessed, quantizer_errors
from onefold.compression.onnx_stored_weights import store_in_int8
from onefold.compression.onnx_weights import WEIGHTED, full_precision_layers
from onefold.serving.signature import architecture
from onefold.vocabulary.errors import InputError, ModelError

MIN_CALIBRATION_SAMPLES = 32
CALIBRATION_BATCH_SIZE = 16
MIN_HALF_SIZE = 32  # elements; smaller tensors stay in fp32
# Dynamically quantized convolutions are slower than fp32 ones in ONNX Runtime; it has no dynamic GRU and RNN.
NOT_DYNAMIC = ("Conv", "ConvTranspose", "GRU", "RNN")


class StaticQuantization(Compressor):
    """Post-training static quantization: int8 weights per channel, activations calibrated on samples.

    Recurrent layers, for which ONNX Runtime has no static integer kernels, store int8 weights and compute in fp32.
    """

    supports_aware_training = True

    def simulate(self, network: torch.nn.Module) -> AbstractContextManager[None]:
        """Use fake quantization."""
        return fake_quantization(network)

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:
        """Calibrate on the samples; raises InputError if there are fewer than MIN_CALIBRATION_SAMPLES."""
        calibration_set = checked_calibration_set(samples, "int8")
        with preprocessed(source, "int8") as model, quantizer_errors("int8"):
            quantize_statically(model, target, calibration_set)
            store_in_int8(target)
        return full_precision_layers(target)


class DynamicQuantization(StaticQuantization):
    """Post-training dynamic quantization: int8 weights, activations quantized at run time; covers LSTM layers too.

    Convolutions, GRU and RNN layers store int8 weights and compute in fp32.
    """

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Quantize without calibration."""
        with preprocessed(source, "int8-dynamic") as model, quantizer_errors("int8-dynamic"):
            quantize_dynamically(model, target)
            store_in_int8(target)
        return full_precision_layers(target)


class HalfPrecision(Compressor):
    """Store weights in fp16; the runtime casts them to fp32 when it loads the model."""

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Insert a Cast node after each fp16 tensor; raises ModelError if a weight overflows."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        model = onnx.load(str(source))
        graph, casts = model.graph, []
        for index, tensor in enumerate(graph.initializer):
            if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < MIN_HALF_SIZE:
                continue
            with np.errstate(over="ignore"):
                half = numpy_helper.to_array(tensor).astype(np.float16)
            if not np.isfinite(half).all():
                raise ModelError(f"the weights {tensor.name} are too large for half precision")
            casts.append(helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=TensorProto.FLOAT))
            graph.initializer[index].CopyFrom(numpy_helper.from_array(half, f"{tensor.name}.half"))
        nodes = [*casts, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        target.write_bytes(model.SerializeToString(deterministic=True))
        return ()


def checked_calibration_set(samples: Samples | None, precision: str) -> Samples:
    """Return the calibration set; raises InputError if there are fewer than MIN_CALIBRATION_SAMPLES."""
    count = min((len(array) for array in samples.values()), default=0) if samples else 0
    if samples is None or count < MIN_CALIBRATION_SAMPLES:
        raise InputError(
            f"{precision} needs a calibration set of at least {MIN_CALIBRATION_SAMPLES} samples, but got {count}; give "
            "more samples, or use int8-dynamic, which needs none"
        )
    return samples


def quantize_statically(
    model: Path, target: Path, samples: Samples, *, layers: Sequence[str] = (), calibration: Path | None = None
) -> None:
    """Quantize weights and activations of a preprocessed model: all, or the named operators alone.

    The ranges of activations are written to the file `calibration`, or read from it if it exists.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with np.errstate(over="ignore", invalid="ignore"):  # as the ranges of masks do, which are not used
        quantize_static(
            str(model),
            str(target),
            _calibration_reader(samples, architecture(model).batch_size or CALIBRATION_BATCH_SIZE),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            nodes_to_quantize=list(layers),
            nodes_to_exclude=attention_weight_operators(onnx.load(str(model))),
            extra_options={"CalibMovingAverage": True},
            calibration_cache_path=calibration,
        )


def quantize_dynamically(model: Path, target: Path, *, layers: Sequence[str] = ()) -> None:
    """Quantize weights, and activations at run time, of a preprocessed model: all, or the named operators alone."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(model),
        str(target),
        op_types_to_quantize=[op_type for op_type in WEIGHTED if op_type not in NOT_DYNAMIC],
        per_channel=True,
        weight_type=QuantType.QInt8,
        nodes_to_quantize=list(layers),
        extra_options={"DefaultTensorType": TensorProto.FLOAT},  # of the outputs of operators outside of ONNX
    )


def _calibration_reader(samples: Samples, batch_size: int) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    count = min(len(array) for array in samples.values())

    class SampleReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = (
                {name: array[start : start + batch_size] for name, array in samples.items()}
                for start in range(0, count - count % batch_size, batch_size)
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    return SampleReader()
