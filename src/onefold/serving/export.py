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

from onefold.agent.loaded_model import LoadedModel, run_batch
from onefold.agent.onnx_model import OnnxModel
from onefold.kernels.toolchain import silent_stderr
from onefold.runtimes.output_comparison import relative_difference
from onefold.serving.onnx_provenance import without_provenance
from onefold.serving.shape_folding import fold_shapes
from onefold.vocabulary.attention import without_fused_attention
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.outputs import names_in, tensors_in
from onefold.vocabulary.serving import ServingPoint

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


def export(network: Any, samples: Sequence[Any], path: Path) -> Path:
    """Write `network` as an ONNX model that answers like it, and a few samples beside it.

    The batch dimension is dynamic, or 1 where the network can be exported only so. Of a network that returns a mapping,
    a dataclass or a tuple, all tensors are outputs in their order, with their names in it.

    Args:
        network: The network.
        samples: One tensor or array per input, the batch first.
        path: The file.

    Returns:
        `path`.

    Raises:
        ModelError: It cannot be exported: the operator is named if it is known, or by how much the outputs differ.
    """
    import numpy as np
    import torch

    inputs = tuple(torch.as_tensor(values)[:SAMPLES].cpu() for values in samples)
    network = network.cpu().eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"input{index}" for index in range(len(inputs))]
    arrays = {name: values.numpy() for name, values in zip(names, inputs)}
    np.savez(samples_beside(path), **arrays)  # type: ignore[arg-type]
    failures: list[Exception] = []
    with torch.no_grad(), _silenced(), without_fused_attention():
        exported = _Flat(network, inputs)
        for attempt in (_export_by_tracing, _export_by_torch_export, _export_single_sample):
            try:
                attempt(exported.module, inputs, names, exported.names, path)
                without_provenance(path)
                fold_shapes(path, arrays)
                check(network, path)
            except Exception as error:  # noqa: BLE001 - models fail in many ways
                failures.append(error)
            else:
                return path
    path.unlink(missing_ok=True)
    differing = next((error for error in failures if isinstance(error, _OutputsDiffer)), None)
    if differing is not None:
        raise ModelError(str(differing)) from differing
    raise ModelError(f"the model cannot be exported to ONNX: {_cause(failures[0])}") from failures[0]


class _OutputsDiffer(ModelError):
    """The exported model answers otherwise than the network."""


def samples_beside(path: Path) -> Path:
    """Return the path of the samples of an exported model."""
    return path.with_suffix(".npz")


def difference(network: Any, path: Path) -> float:
    """Return the largest difference between the outputs of the exported model and the network, relative to the largest.

    Compares every output at the batch size of the samples and at 1, which detects a batch size that was traced as a
    constant; returns infinity if the model fails, or if its outputs have another number or shape or are NaN where the
    network's are not.
    """
    from onefold.arrays.files import read_arrays

    try:
        loaded = OnnxModel(path, ServingPoint())
    except Exception:  # noqa: BLE001 - such as an operator that ONNX Runtime does not have
        return float("inf")
    names = [argument.name for argument in loaded.inputs]
    return worst_difference(network, loaded, list(read_arrays(samples_beside(path), names).values()))


def worst_difference(network: Any, loaded: LoadedModel, samples: Sequence[Any]) -> float:
    """Return the largest difference between the outputs of a loaded model and the network; see `difference`."""
    import torch

    if loaded.batch_size not in (None, 1):
        return float("inf")
    worst = 0.0
    for count in (len(samples[0]), 1):
        batch = [array[:count] for array in samples]
        with torch.no_grad(), without_fused_attention():
            outputs = network.cpu().eval()(*(torch.as_tensor(array) for array in batch))
        tensors = tensors_in(outputs)
        try:
            actual = run_batch(loaded, batch)
        except Exception:  # noqa: BLE001 - a constant batch size fails in many ways
            return float("inf")
        if len(actual) != len(tensors):
            return float("inf")
        worst = max(worst, *(relative_difference(pair[0], pair[1].numpy()) for pair in zip(actual, tensors)))
    return worst


def exported_outputs(network: Any, samples: Sequence[Any]) -> Any:
    """Return a network with the outputs that an export has: a tensor, or a tuple of all tensors."""
    import torch

    return _Flat(network, tuple(torch.as_tensor(values) for values in samples)).module


def check(network: Any, path: Path) -> None:
    """Raise ModelError unless the outputs of the exported model agree with the network's."""
    error = difference(network, path)
    if not error <= TOLERANCE:
        raise _OutputsDiffer(
            f"the outputs of the exported model differ from PyTorch's by {error:.2g} of the largest output; a forward "
            "pass that branches on the data or on the batch size cannot be exported"
        )


def _export_by_tracing(network: Any, inputs: tuple[Any, ...], names: list[str], outputs: list[str], path: Path) -> None:
    """Export by tracing, which takes milliseconds and suffices for most networks."""
    import torch

    torch.onnx.export(
        network,
        inputs,
        str(path),
        dynamo=False,
        input_names=names,
        output_names=outputs,
        dynamic_axes={name: {0: "batch"} for name in (*names, *outputs)},
    )


def _export_by_torch_export(
    network: Any, inputs: tuple[Any, ...], names: list[str], outputs: list[str], path: Path
) -> None:
    """Export by torch.export, which takes seconds and supports more networks."""
    import torch

    dimensions = tuple({0: torch.export.Dim("batch", min=1)} for _ in inputs)
    program = torch.onnx.export(
        network, inputs, dynamo=True, input_names=names, output_names=outputs, dynamic_shapes=dimensions
    )
    if program is None:
        raise ModelError("torch.export returned no program for this module")
    program.save(str(path))


def _export_single_sample(
    network: Any, inputs: tuple[Any, ...], names: list[str], outputs: list[str], path: Path
) -> None:
    """Export by tracing for one sample: a forward pass that computes with the batch size as a number."""
    import torch

    single = tuple(values[:1] for values in inputs)
    torch.onnx.export(network, single, str(path), dynamo=False, input_names=names, output_names=outputs)


class _Flat:
    """A network whose outputs can be exported: a tensor, or a tuple of them.

    `module` is the network itself if its outputs are flat already, or if it fails, which the export says in its own
    words.
    """

    def __init__(self, network: Any, inputs: tuple[Any, ...]) -> None:
        import torch

        class Flattened(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, *inputs: Any) -> Any:
                tensors = tensors_in(self.network(*inputs))
                return tensors[0] if len(tensors) == 1 else tuple(tensors)

        self.module, self.names = network, ["output"]
        try:
            outputs = network(*inputs)
        except Exception:  # noqa: BLE001 - the export raises it with its own message
            return
        if not isinstance(outputs, torch.Tensor):
            self.module, self.names = Flattened().eval(), names_in(outputs)


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
        with silent_stderr(), warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)
