"""From a network to an ONNX file that serves the same."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 8  # kept beside an exported model, to serve it with real inputs
CLOSE = 1e-3  # how far outputs may be from PyTorch's, relative to the largest


@dataclass(frozen=True, slots=True)
class Exported:
    """The architecture of a trial, as it would be served; its weights are still random."""

    trial: int
    model: str
    signature: str


def export(network: Any, samples: Sequence[Any], path: Path) -> Path:
    """Writes `network` as an ONNX model whose first dimension is open, and a few samples beside it.

    `samples` are the inputs, each a tensor or an array of several samples. Raises ModelError, naming the operator that
    is to blame where that is known.
    """
    import torch

    inputs = tuple(torch.as_tensor(each)[:SAMPLES].cpu() for each in samples)
    network = network.cpu().eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"input{place}" for place in range(len(inputs))]
    with torch.no_grad(), _in_silence():
        try:
            _by_tracing(network, inputs, names, path)
        except Exception as first:  # noqa: BLE001 - any model may fail in its own way
            try:
                _by_capturing(network, inputs, names, path)
            except Exception:  # noqa: BLE001
                raise ModelError(f"the model cannot be exported to ONNX: {_blame(first)}") from first
    import numpy as np

    np.savez(samples_beside(path), **{name: each.numpy() for name, each in zip(names, inputs)})  # type: ignore[arg-type]
    return path


def samples_beside(path: Path) -> Path:
    """Where the samples of an exported model are."""
    return path.with_suffix(".npz")


def difference(network: Any, path: Path) -> float:
    """How far the exported model's outputs are from the network's own, relative to the largest of them.

    Compared at the batch size of the samples and at 1, so that a model that took the batch size for a constant is
    found out.
    """
    import numpy as np
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is told here, and not by the library
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with np.load(samples_beside(path), allow_pickle=False) as kept:
        samples = {name: kept[name] for name in kept.files}
    worst = 0.0
    for count in (len(next(iter(samples.values()))), 1):
        feed = {name: array[:count] for name, array in samples.items()}
        with torch.no_grad():
            wanted = _first(network.cpu().eval()(*(torch.as_tensor(array) for array in feed.values()))).numpy()
        try:
            got = session.run(None, feed)[0]
        except Exception:  # noqa: BLE001 - a graph that took the batch size for a constant fails in its own way
            return float("inf")
        if got.shape != wanted.shape:
            return float("inf")
        worst = max(worst, float(np.abs(got - wanted).max() / (np.abs(wanted).max() + 1e-12)))
    return worst


def check(network: Any, path: Path) -> None:
    """Raises ModelError unless the exported model answers as the network does."""
    found = difference(network, path)
    if not found <= CLOSE:
        raise ModelError(
            f"the exported model answers differently from PyTorch (by {found:.2g} of the largest output); "
            "a forward pass that branches on the data or on the batch size cannot be exported"
        )


def _by_tracing(network: Any, inputs: tuple[Any, ...], names: list[str], path: Path) -> None:
    """By running it once and writing down what happens: milliseconds, and enough for most networks."""
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


def _by_capturing(network: Any, inputs: tuple[Any, ...], names: list[str], path: Path) -> None:
    """By reading its code: seconds, but it understands more."""
    import torch

    dimensions = tuple({0: torch.export.Dim("batch", min=1)} for _ in inputs)
    program = torch.onnx.export(
        network, inputs, dynamo=True, input_names=names, output_names=["output"], dynamic_shapes=dimensions
    )
    if program is None:
        raise ModelError("torch gave no program")
    program.save(str(path))


def _first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def _blame(error: Exception) -> str:
    """The line that names the operator, or the first that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "operator" in line.lower() or "aten::" in line]
    return (telling or lines or [type(error).__name__])[0]


@contextmanager
def _in_silence() -> Iterator[None]:
    """torch's exporters print, warn and log; what matters of it is in the exception."""
    import torch

    with suppress(AttributeError):  # of what it cannot export the tracer prints a graph, past every redirection
        torch._C._jit_set_onnx_log_output_stream("stderr")
    silent = logging.root.manager.disable  # as others want it
    logging.disable(max(silent, logging.WARNING))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silent)
