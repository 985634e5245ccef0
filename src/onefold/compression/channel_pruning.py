"""Structured pruning: remove whole channels, so that the network has fewer operations.

ChannelPruner(network, inputs, share=0.5).prune()
...                                              # fine-tune

torch-pruning finds which channels depend on each other (those of a layer, of the normalization after it, of the layers
that read them, of the other branch of a sum) from the gradient graph of the network's outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from onefold.compression.compressor import Compressor, FineTuning
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Value

LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
RECURRENT = "channels cannot be removed from a network with recurrent layers; set a sparsity instead"


class ChannelPruning(Compressor):
    """Remove a share of the channels of every layer but the last; the setting is that share."""

    def unsupported(self, network: torch.nn.Module) -> str:
        """Name the limitation for networks with recurrent layers."""
        return RECURRENT if _is_recurrent(network) else ""

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:
        """Prune at once and train from the full learning rate: gradual or slower training is up to 2 points worse."""
        self.build(network, value, [part[:2] for part in fine_tuning.inputs])
        fine_tuning.run(network, learning_rate_factor=1.0)

    def build(self, network: torch.nn.Module, value: Value, inputs: Sequence[torch.Tensor]) -> None:
        """Prune the network."""
        ChannelPruner(network, inputs, float(value or 0.0)).prune()


class ChannelPruner:
    """Remove the channels with the smallest L2 norm from a network, in place."""

    def __init__(self, network: torch.nn.Module, inputs: Sequence[torch.Tensor], share: float) -> None:
        import torch_pruning

        self._network = network.eval()
        self._inputs = tuple(inputs)
        self._shapes = self._output_shapes()
        if _is_recurrent(network):
            raise ModelError(RECURRENT)
        if not any(isinstance(module, LAYERS) for module in network.modules()):
            raise ModelError("the network has no channels to remove: it has neither Linear nor convolution layers")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._pruner = torch_pruning.pruner.BasePruner(
                    network,
                    self._inputs if len(self._inputs) > 1 else self._inputs[0],
                    importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
                    pruning_ratio=share,
                    ignored_layers=self._output_layers(),
                )
        except Exception as error:  # a forward pass may raise anything
            raise ModelError(f"channels cannot be removed from this network: {error}") from error

    def prune(self) -> None:
        """Remove the channels; raises ModelError unless the network still returns outputs of the same shapes."""
        try:
            self._pruner.step()
        except Exception as error:
            raise ModelError(f"channels cannot be removed from this network: {error}") from error
        try:
            shapes = self._output_shapes()
        except Exception as error:
            raise ModelError(f"the forward pass fails with fewer channels: {error}") from error
        if shapes != self._shapes:
            raise ModelError(f"removing channels changes the output shapes from {self._shapes} to {shapes}")

    def _output_layers(self) -> list[torch.nn.Module]:
        """Return the last layer that runs, whose channels are the outputs of the network."""
        order: list[torch.nn.Module] = []
        hooks = [
            module.register_forward_hook(lambda module, *_: order.append(module))
            for module in self._network.modules()
            if isinstance(module, LAYERS)
        ]
        try:
            self._output_shapes()
        finally:
            for hook in hooks:
                hook.remove()
        return order[-1:]

    def _output_shapes(self) -> list[tuple[int, ...]]:
        training = self._network.training
        self._network.eval()
        with torch.no_grad():
            outputs: Any = self._network(*self._inputs)
        self._network.train(training)
        return [tuple(part.shape) for part in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]


def _is_recurrent(network: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.RNNBase) for module in network.modules())
