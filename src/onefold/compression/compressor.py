"""The seam for compression methods: what the variant builders and the in-loop workload ask of each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from onefold.vocabulary.records import Value

# In the order in which a recipe applies them: change layer shapes, then weights, then rewrite the exported ONNX graph.
Stage = Literal["architecture", "weights", "graph"]
STAGES: tuple[Stage, ...] = ("architecture", "weights", "graph")
StepCallback = Callable[[], None]
Samples = Mapping[str, "NDArray[Any]"]  # inputs by their names in the ONNX graph


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

    A method of the stages "architecture" and "weights" changes a PyTorch network in place:

    * after the study, `compress` changes the network and fine-tunes it;
    * in the loop, `build` changes a new network, `begin_epoch` tightens the constraint epoch by epoch, and `finalize`
      enforces the whole of it on a copy that is scored and exported.

    A method of the stage "graph" rewrites an exported ONNX file with `compress_onnx`. If it overrides `simulate`, it
    supports quantization-aware training: inside the context, forward passes compute as the compressed file will.

    Every method keeps these promises, which `onefold.testing.compressors.CompressorContract` tests:

    * The compressed network accepts the same inputs and returns outputs of the same shapes.
    * Network changes are deterministic, and further training with the callback of `preserve` does not undo them.
    * `simulate` leaves parameters, their order and the keys of the state dict unchanged when the context exits.
    * `compress_onnx` leaves its source unchanged.
    * A network or graph that cannot be compressed raises ModelError; a lack of calibration samples raises InputError.
    """

    def unsupported(self, network: torch.nn.Module) -> str:  # noqa: ARG002
        """Return why this network cannot be compressed, as far as its layers tell; empty if it can."""
        return ""

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:  # noqa: ARG002
        """Compress a trained network in place and fine-tune it."""
        return

    def preserve(self, network: torch.nn.Module, value: Value) -> StepCallback:  # noqa: ARG002
        """Return a callback that, run after each optimizer step, keeps a compressed network compressed."""
        return _no_callback

    def build(self, network: torch.nn.Module, value: Value, inputs: Sequence[torch.Tensor]) -> None:  # noqa: ARG002
        """Change a network before its first epoch of in-loop training; `inputs` are two samples for tracing."""
        return

    def begin_epoch(self, network: torch.nn.Module, value: Value) -> StepCallback:  # noqa: ARG002
        """Prepare a network for an epoch of in-loop training; return the callback to run after each step."""
        return _no_callback

    def finalize(self, network: torch.nn.Module, value: Value) -> None:  # noqa: ARG002
        """Compress a network of in-loop training in place as far as `value` says, without training."""
        return

    @property
    def supports_aware_training(self) -> bool:
        """Return whether `simulate` computes as the compressed model will."""
        return False

    def simulate(self, network: torch.nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context in which forward passes compute as the compressed model will, and gradients pass through."""
        return nullcontext()

    def stored_weight(self, weight: torch.Tensor) -> NDArray[Any]:
        """Return a tensor of the state dict with the values and the type that the compressed file stores."""
        return weight.cpu().numpy()

    def compress_onnx(self, source: Path, target: Path, samples: Samples | None) -> tuple[str, ...]:  # noqa: ARG002
        """Write the compressed model; return the names of layers that could not be compressed.

        `samples` is the calibration set; None if there is none.
        """
        raise ModelError(f"{type(self).__name__} does not compress ONNX files such as {source}")


def _no_callback() -> None:
    """Do nothing after a step."""
