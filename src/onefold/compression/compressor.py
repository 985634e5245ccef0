"""The seam for compression methods: what the variant builders ask of each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from onefold.compression.requirements import Requirements
    from onefold.vocabulary.records import Value
    from onefold.vocabulary.variants import LayerPrecision

# In the order in which a recipe applies them: change layer shapes, then weights, then rewrite the exported ONNX graph.
Stage = Literal["architecture", "weights", "graph"]
STAGES: tuple[Stage, ...] = ("architecture", "weights", "graph")
StepCallback = Callable[[], None]
Samples = Mapping[str, "NDArray[Any]"]  # inputs by their names in the ONNX graph


@dataclass(frozen=True, slots=True)
class CompressedGraph:
    """What became of the layers of an ONNX graph."""

    uncompressed: tuple[str, ...] = ()  # layers that could not be compressed
    layers: tuple[LayerPrecision, ...] = ()  # if the method has chosen a precision for each layer


class FineTuning(Protocol):
    """Training that a compressor may run on a network after it has changed it."""

    @property
    def epochs(self) -> int:
        """Return the number of epochs to train for, at least 1."""

    @property
    def inputs(self) -> Sequence[torch.Tensor]:
        """Return a few training samples without targets, for tracing."""

    def run(
        self,
        network: torch.nn.Module,
        *,
        learning_rate_factor: float,
        before_epoch: Callable[[int], None] = lambda epoch: None,  # noqa: ARG005
        after_step: StepCallback = lambda: None,
    ) -> None:
        """Train in place for `epochs`, starting at that share of the workload's learning rate."""


class Compressor(Protocol):
    """A compression method. Subclass it and override the methods that apply; the defaults change nothing.

    `value` is always the setting of the method's parameter in a recipe, already validated by the registry: a share
    between 0 and 1 (exclusive), or the method's own name where several methods share one parameter.

    A method of the stages "architecture" and "weights" changes a trained PyTorch network in place with `compress`, and
    fine-tunes it.

    A method of the stage "graph" rewrites an exported ONNX file with `compress_onnx`. If it overrides `simulate`, it
    supports quantization-aware training: inside the context, forward passes compute as the compressed file will.

    Every method keeps these promises, which `onefold.testing.compressors.CompressorContract` tests:

    * The compressed network accepts the same inputs and returns outputs of the same shapes.
    * Network changes are deterministic, and further training with the callback of `preserve` does not undo them.
    * `simulate` leaves parameters, their order and the keys of the state dict unchanged when the context exits.
    * `compress_onnx` leaves its source unchanged.
    * A network or graph that cannot be compressed raises ModelError; a lack of calibration samples raises InputError.
    """

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:  # noqa: ARG002
        """Compress a trained network in place and fine-tune it."""
        return

    def preserve(self, network: torch.nn.Module, value: Value) -> StepCallback:  # noqa: ARG002
        """Return a callback that, run after each optimizer step, keeps a compressed network compressed."""
        return _no_callback

    @property
    def supports_aware_training(self) -> bool:
        """Return whether `simulate` computes as the compressed model will."""
        return False

    def simulate(self, network: torch.nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context in which forward passes compute as the compressed model will, and gradients pass through."""
        return nullcontext()

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Write the compressed model; return the names of layers that could not be compressed.

        `samples` is the calibration set; None if there is none.
        """
        raise ModelError(f"{type(self).__name__} does not compress ONNX files such as {source}")

    def compress_within(
        self,
        source: Path,
        target: Path,
        samples: Samples | None,
        requirements: Requirements,  # noqa: ARG002
    ) -> CompressedGraph:
        """Write the compressed model; a method that can choose how far to go just meets the requirements."""
        return CompressedGraph(self.compress_onnx(source, target, samples))


def _no_callback() -> None:
    """Do nothing after a step."""
