"""Prepare ONNX files for the quantizer of ONNX Runtime, and translate its errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onefold.compression.onnx_node_order import move_relu_before_max_pool
from onefold.compression.onnx_shared_weights import transpose_shared_weights
from onefold.processes import scratch_folder
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError


@contextmanager
def preprocessed(source: Path, precision: str) -> Iterator[Path]:
    """Infer shapes and fold normalization into convolutions, as the quantizer requires; every node has a name."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with scratch_folder() as folder:
        target = folder / "preprocessed.onnx"
        with quantizer_errors(precision):
            model = onnx.load(str(source))
            for index, node in enumerate(model.graph.node):
                node.name = node.name or f"{node.op_type}_{index}"  # the quantizer takes operators by name
            move_relu_before_max_pool(model)
            transpose_shared_weights(model)
            moved = Path(folder) / "moved.onnx"  # the quantizer fails on some models unless it reads them from a file
            moved.write_bytes(model.SerializeToString())
            quant_pre_process(moved, target, skip_symbolic_shape=True)
        yield target


@contextmanager
def quantizer_errors(precision: str) -> Iterator[None]:
    """Map the quantizer's exceptions to ModelError, and silence its log messages, which users cannot act on."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        yield
    except Exception as error:  # ONNX Runtime documents no exception types
        raise ModelError(f"the model cannot be quantized to {precision}: {headline(error)}") from error
    finally:
        logging.disable(disabled)
