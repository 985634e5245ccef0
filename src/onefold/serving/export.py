"""Export a PyTorch network to ONNX and verify the result."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.agent.inference_session import open_inference_session
from onefold.serving.shape_folding import fold_shapes
from onefold.vocabulary.attention import without_fused_attention
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.outputs import predictions_in, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 8  # saved beside an exported model, to measure it with real inputs
TOLERANCE = 1e-3  # of the outputs, relative to the largest


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported architecture of a trial, with untrained weights."""

    trial: int
    model: str
    signature: str


def export(network: Any, samples: Sequence[Any], path: Path, *, all_outputs: bool = False) -> Path:
    """Write `network` as an ONNX model with a dynamic batch dimension, and a few samples beside it.

    `samples` has one tensor or array per input, the batch first. A network that returns a mapping or a dataclass is
    exported with its predictions as the only output; with `all_outputs`, with all of its tensors in their order.
    Returns `path`. Raises ModelError, which names the operator that cannot be exported if it is known.
    """
    import torch

    inputs = tuple(torch.as_tensor(values)[:SAMPLES].cpu() for values in samples)
    network = network.cpu().eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"input{index}" for index in range(len(inputs))]
    with torch.no_grad(), _silenced(), without_fused_attention():
        network = _flattened(network, inputs, all_outputs)
        try:
            _export_by_tracing(network, inputs, names, path)
        except Exception as first:  # noqa: BLE001 - models fail in many ways
            try:
                _export_by_torch_export(network, inputs, names, path)
            except Exception:  # noqa: BLE001
                raise ModelError(f"the model cannot be exported to ONNX: {_cause(first)}") from first
    import numpy as np

    arrays = {name: values.numpy() for name, values in zip(names, inputs)}
    fold_shapes(path, arrays)
    np.savez(samples_beside(path), **arrays)  # type: ignore[arg-type]
    return path


def samples_beside(path: Path) -> Path:
    """Return the path of the samples of an exported model."""
    return path.with_suffix(".npz")


def difference(network: Any, path: Path) -> float:
    """Return the largest difference between the outputs of the exported model and the network, relative to the largest.

    Compares at the batch size of the samples and at 1, which detects a batch size that was traced as a constant;
    returns infinity if the model fails, or if its outputs have another shape or are NaN where the network's are not.
    """
    import numpy as np
    import onnxruntime
    import torch

    from onefold.arrays.files import read_arrays

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so the library need not print them too
    session = open_inference_session(path, options)
    samples = read_arrays(samples_beside(path))
    worst = 0.0
    for count in (len(next(iter(samples.values()))), 1):
        feed = {name: array[:count] for name, array in samples.items()}
        with torch.no_grad(), without_fused_attention():
            expected = _first(network.cpu().eval()(*(torch.as_tensor(array) for array in feed.values()))).numpy()
        try:
            actual = session.run(None, feed)[0]
        except Exception:  # noqa: BLE001 - a constant batch size fails in many ways
            return float("inf")
        if actual.shape != expected.shape:
            return float("inf")
        if not np.array_equal(np.isnan(actual), np.isnan(expected)):
            return float("inf")
        with np.errstate(invalid="ignore"):  # equal infinities have no difference
            largest = np.nanmax(np.abs(expected), initial=0.0) + 1e-12
            worst = max(worst, float(np.nanmax(np.abs(actual - expected), initial=0.0) / largest))
    return worst


def check(network: Any, path: Path) -> None:
    """Raise ModelError unless the outputs of the exported model agree with the network's."""
    error = difference(network, path)
    if not error <= TOLERANCE:
        raise ModelError(
            f"the outputs of the exported model differ from PyTorch's by {error:.2g} of the largest output; a forward "
            "pass that branches on the data or on the batch size cannot be exported"
        )


def _export_by_tracing(network: Any, inputs: tuple[Any, ...], names: list[str], path: Path) -> None:
    """Export by tracing, which takes milliseconds and suffices for most networks."""
    import torch

    torch.onnx.export(
        network,
        inputs,
        str(path),
        dynamo=False,
        input_names=names,
        output_names=["output"],
        dynamic_axes={name: {0: "batch"} for name in (*names, "output")},
    )


def _export_by_torch_export(network: Any, inputs: tuple[Any, ...], names: list[str], path: Path) -> None:
    """Export by torch.export, which takes seconds and supports more networks."""
    import torch

    dimensions = tuple({0: torch.export.Dim("batch", min=1)} for _ in inputs)
    program = torch.onnx.export(
        network, inputs, dynamo=True, input_names=names, output_names=["output"], dynamic_shapes=dimensions
    )
    if program is None:
        raise ModelError("torch.export returned no program for this module")
    program.save(str(path))


def _flattened(network: Any, inputs: tuple[Any, ...], all_outputs: bool) -> Any:
    """Return a network that returns the predictions, or all tensors, if `network` returns a mapping or a dataclass."""
    import torch

    class Flattened(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *inputs: Any) -> Any:
            outputs = self.network(*inputs)
            return tuple(tensors_in(outputs)) if all_outputs else predictions_in(outputs)

    try:
        outputs = network(*inputs)
    except Exception:  # noqa: BLE001 - the export raises it with its own message
        return network
    return network if isinstance(outputs, (torch.Tensor, tuple, list)) else Flattened().eval()


def _first(outputs: Any) -> Any:
    """Return the output that an exported model has first."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else predictions_in(outputs)


def _cause(error: Exception) -> str:
    """Return the line that names the operator, or the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    naming = [line for line in lines if "operator" in line.lower() or "aten::" in line]
    return (naming or lines or [type(error).__name__])[0]


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress what torch's exporters print, warn and log; exceptions carry what matters."""
    import torch

    with suppress(AttributeError):  # the tracer prints graphs that it cannot export, bypassing redirection
        torch._C._jit_set_onnx_log_output_stream("stderr")
    disabled_level = logging.root.manager.disable
    logging.disable(max(disabled_level, logging.WARNING))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)
