"""Whole channels taken out of a network, so that it is really smaller and faster.

ChannelPruner(network, inputs, share=0.5).step()
...                                             # train

Which channels belong together (of a layer, of the norm after it, of the layer that reads them, of the other branch of a
sum) is found out by torch-pruning, which follows the gradients of the network's outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from onefold.vocabulary.errors import ModelError

LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


class ChannelPruner:
    """Takes channels out of a network, in place, the least important first."""

    def __init__(self, network: torch.nn.Module, inputs: Sequence[torch.Tensor], share: float) -> None:
        import torch_pruning

        self._network = network.eval()
        self._inputs = tuple(inputs)
        self._shapes = self._answer_shapes()
        if any(isinstance(module, torch.nn.RNNBase) for module in network.modules()):
            raise ModelError(
                "channels cannot be taken out of a network with recurrent layers; prune to a sparsity instead"
            )
        if not any(isinstance(module, LAYERS) for module in network.modules()):
            raise ModelError("the network has no channels to take out: no Linear and no convolution among its layers")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._pruner = torch_pruning.pruner.BasePruner(
                    network,
                    self._inputs if len(self._inputs) > 1 else self._inputs[0],
                    importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
                    pruning_ratio=share,
                    ignored_layers=self._last_layers(),
                )
        except Exception as error:  # a network may do anything in its forward pass
            raise ModelError(f"channels cannot be taken out of this network: {error}") from error

    def step(self) -> None:
        """Takes them out."""
        try:
            self._pruner.step()
        except Exception as error:
            raise ModelError(f"channels cannot be taken out of this network: {error}") from error
        self.check()

    def check(self) -> None:
        """Raises ModelError unless the network still answers, with outputs of the same shapes."""
        try:
            shapes = self._answer_shapes()
        except Exception as error:
            raise ModelError(f"the network does not run with fewer channels: {error}") from error
        if shapes != self._shapes:
            raise ModelError(f"with fewer channels the network's outputs would be {shapes} instead of {self._shapes}")

    def _last_layers(self) -> list[torch.nn.Module]:
        """The layers whose channels are the network's outputs: the last that runs, with the classes in it."""
        order: list[torch.nn.Module] = []
        hooks = [
            module.register_forward_hook(lambda module, *_: order.append(module))
            for module in self._network.modules()
            if isinstance(module, LAYERS)
        ]
        try:
            self._answer_shapes()
        finally:
            for hook in hooks:
                hook.remove()
        return order[-1:]

    def _answer_shapes(self) -> list[tuple[int, ...]]:
        training = self._network.training
        self._network.eval()
        with torch.no_grad():
            answer: Any = self._network(*self._inputs)
        self._network.train(training)
        return [tuple(part.shape) for part in (answer if isinstance(answer, (tuple, list)) else (answer,))]
