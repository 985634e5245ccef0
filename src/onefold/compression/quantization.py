"""Quantization of ONNX files with the quantizer of ONNX Runtime: static int8, dynamic int8, and fp16 weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onefold.compression.compressor import Compressor, Samples
from onefold.compression.fake_quantization import fake_quantization, quantized_weight
from onefold.compression.onnx_node_order import move_relu_before_max_pool
from onefold.compression.onnx_weights import WEIGHTED, full_precision_layers
from onefold.processes import scratch_folder
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import InputError, ModelError

MIN_CALIBRATION_SAMPLES = 32
CALIBRATION_BATCH_SIZE = 16
MIN_HALF_SIZE = 32  # elements; smaller tensors stay in fp32
# Dynamically quantized convolutions are slower than fp32 ones in ONNX Runtime; it has no dynamic GRU and RNN.
NOT_DYNAMIC = ("Conv", "ConvTranspose", "GRU", "RNN")


class StaticQuantization(Compressor):
    """Post-training static quantization: int8 weights per channel, activations calibrated on samples."""

    supports_aware_training = True

    def simulate(self, network: torch.nn.Module) -> AbstractContextManager[None]:
        """Use fake quantization."""
        return fake_quantization(network)

    def stored_weight(self, weight: torch.Tensor) -> NDArray[Any]:
        """Quantize matrices and kernels; biases and normalization parameters stay in fp32."""
        if weight.ndim > 1 and weight.is_floating_point():
            return quantized_weight(weight).cpu().numpy().astype(np.int8)
        return weight.cpu().numpy()

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:
        """Calibrate on the samples; raises InputError if there are fewer than MIN_CALIBRATION_SAMPLES."""
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        count = min((len(array) for array in samples.values()), default=0) if samples else 0
        if samples is None or count < MIN_CALIBRATION_SAMPLES:
            raise InputError(
                f"int8 needs a calibration set of at least {MIN_CALIBRATION_SAMPLES} samples, but got {count}; give "
                "more samples, or use int8-dynamic, which needs none"
            )
        with _preprocessed(source, "int8") as model, _quantizer_errors("int8"):
            quantize_static(
                str(model),
                str(target),
                _calibration_reader(samples, count),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                extra_options={"CalibMovingAverage": True},
            )
        return full_precision_layers(target)


class DynamicQuantization(StaticQuantization):
    """Post-training dynamic quantization: int8 weights, activations quantized at run time; covers LSTM layers too."""

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Quantize without calibration."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        types = [op_type for op_type in WEIGHTED if op_type not in NOT_DYNAMIC]
        with _preprocessed(source, "int8-dynamic") as model, _quantizer_errors("int8-dynamic"):
            quantize_dynamic(
                str(model), str(target), op_types_to_quantize=types, per_channel=True, weight_type=QuantType.QInt8
            )
        return full_precision_layers(target)


class HalfPrecision(Compressor):
    """Store weights in fp16; the runtime casts them to fp32 when it loads the model."""

    def stored_weight(self, weight: torch.Tensor) -> NDArray[Any]:
        """Round large fp32 tensors."""
        is_cast = weight.dtype == torch.float32 and weight.numel() >= MIN_HALF_SIZE
        return (weight.half() if is_cast else weight).cpu().numpy()

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


@contextmanager
def _preprocessed(source: Path, precision: str) -> Iterator[Path]:
    """Infer shapes and fold normalization into convolutions, as the quantizer requires."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with scratch_folder() as folder:
        target = folder / "preprocessed.onnx"
        with _quantizer_errors(precision):
            model = onnx.load(str(source))
            move_relu_before_max_pool(model)
            moved = Path(folder) / "moved.onnx"  # the quantizer fails on some models unless it reads them from a file
            moved.write_bytes(model.SerializeToString())
            quant_pre_process(moved, target, skip_symbolic_shape=True)
        yield target


@contextmanager
def _quantizer_errors(precision: str) -> Iterator[None]:
    """Map the quantizer's exceptions to ModelError, and silence its log messages, which users cannot act on."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        yield
    except Exception as error:  # ONNX Runtime documents no exception types
        raise ModelError(f"the model cannot be quantized to {precision}: {headline(error)}") from error
    finally:
        logging.disable(disabled)


def _calibration_reader(samples: Samples, count: int) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class SampleReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches: Iterator[dict[str, Any]] = (
                {name: array[start : start + CALIBRATION_BATCH_SIZE] for name, array in samples.items()}
                for start in range(0, count - count % CALIBRATION_BATCH_SIZE, CALIBRATION_BATCH_SIZE)
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._batches, None)

    return SampleReader()
