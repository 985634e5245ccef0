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
from onefold.vocabulary.outputs import tensors_in
from onefold.vocabulary.records import Value

LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.Embedding)
RECURRENT = "channels cannot be removed from a network with recurrent layers; set a sparsity instead"


class ChannelPruning(Compressor):
    """Remove a share of the channels of every layer but those that compute outputs; the setting is that share.

    The channels of an Embedding are its dimensions.
    """

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:
        """Prune at once and train from the full learning rate: gradual or slower training is up to 2 points worse."""
        ChannelPruner(network, [part[:2] for part in fine_tuning.inputs], float(value or 0.0)).prune()
        fine_tuning.run(network, learning_rate_factor=1.0)


class ChannelPruner:
    """Remove the channels with the smallest L2 norm from a network, in place."""

    def __init__(self, network: torch.nn.Module, inputs: Sequence[torch.Tensor], share: float) -> None:
        import torch_pruning

        self._network = network.eval()
        self._inputs = tuple(inputs)
        self._shapes = self._output_shapes()
        if _is_recurrent(network):
            raise ModelError(RECURRENT)
        heads = {m: m.num_heads for m in network.modules() if isinstance(m, torch.nn.MultiheadAttention)}
        if not any(isinstance(module, LAYERS) for module in network.modules()):
            raise ModelError("the network has no channels to remove: it has no Linear, convolution or Embedding layers")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._pruner = torch_pruning.pruner.BasePruner(
                    network,
                    self._inputs if len(self._inputs) > 1 else self._inputs[0],
                    importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
                    pruning_ratio=share,
                    in_channel_groups={**heads},  # each head keeps as many dimensions as the others
                    out_channel_groups={**heads},
                    root_module_types=list(LAYERS),
                    output_transform=_marked,
                )
                self._pruner.ignored_layers += self._output_layers()
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
        """Return the layers whose channels reach an output of the network without another layer in between."""
        from torch_pruning.ops import OPTYPE

        groups = self._pruner.DG.get_all_groups(root_module_types=list(LAYERS))
        return [
            dependency.target.module
            for group in groups
            if any(dependency.target.type == OPTYPE.OUTPUT for dependency, _ in group)
            for dependency, _ in group[:1]
        ]

    def _output_shapes(self) -> list[tuple[int, ...]]:
        training = self._network.training
        self._network.eval()
        outputs: Any = self._network(*self._inputs)
        self._network.train(training)
        return [tuple(part.shape) for part in tensors_in(outputs)]


def _marked(outputs: Any) -> list[torch.Tensor]:
    """Return the outputs that a gradient reaches, each after an operation that tells it from the layer before it."""
    return [tensor * 1 for tensor in tensors_in(outputs) if tensor.requires_grad]


def _is_recurrent(network: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.RNNBase) for module in network.modules())
