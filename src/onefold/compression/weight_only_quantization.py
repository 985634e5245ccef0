"""Quantization of weights alone, for layers whose weights are large and whose activations are few."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.compression.compressor import Samples
from onefold.compression.onnx_preprocessing import preprocessed
from onefold.compression.onnx_stored_weights import store_in_int8
from onefold.compression.onnx_weight_blocks import (
    INT4,
    INT8,
    MIN_WEIGHTS,
    large_linear_layers,
    quantize_linear_layers,
)
from onefold.compression.onnx_weights import full_precision_layers, weighted_operators
from onefold.compression.quantization import DynamicQuantization
from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    import torch


class Int4Quantization(DynamicQuantization):
    """Weights of large linear layers in 4 bits, one scale per 32 of them; the rest as in dynamic quantization."""

    supports_aware_training = False

    def simulate(self, network: torch.nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Compute in fp32: the fake quantization of this package has 8 bits."""
        return nullcontext()

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:
        """Quantize without calibration; raises ModelError if no linear layer is large enough."""
        with preprocessed(source, "int4") as path:
            if not quantize_large_layers(path, path, INT4):
                raise ModelError(
                    f"the model has no linear layer of at least {MIN_WEIGHTS:,} weights for int4; use int8-weight-only"
                )
            return super().compress_onnx(path, target, samples)


class Int8WeightOnlyQuantization(Int4Quantization):
    """Weights of large linear layers in 8 bits, one scale per block; other weights are stored in int8.

    Activations stay in fp32 between layers. Simulation computes in fp32: the rounding of weights alone costs little.
    """

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Quantize without calibration; a model without large linear layers stores all of its weights in int8."""
        with preprocessed(source, "int8-weight-only") as path:
            quantize_large_layers(path, target, INT8)
            store_in_int8(target, weighted_operators(target))
        return full_precision_layers(target)


def quantize_large_layers(source: Path, target: Path, bits: int) -> int:
    """Write a preprocessed model with all large linear layers in so many bits; return how many there are."""
    import onnx

    model = onnx.load(str(source))
    layers = large_linear_layers(model)
    quantize_linear_layers(model, dict.fromkeys(layers, bits))
    target.write_bytes(model.SerializeToString(deterministic=True))
    return len(layers)
