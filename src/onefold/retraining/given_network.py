"""Restore the given network: its weights, their memory format and its head."""

from __future__ import annotations

import torch
from torch import nn

from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.training.classification_head import GrownHead


class GivenNetwork:
    """Restore a network to the state in which it was given."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.head: GrownHead | None = None  # if the new data has new classes
        self.trainable: list[nn.Parameter] | None = None  # of the weights, if not all that require a gradient
        self._is_restored = False
        self._required: dict[nn.Parameter, bool] = {}
        self.snapshot: WeightSnapshot | None = None
        self._strides: dict[nn.Parameter, tuple[int, ...]] = {}

    def capture(self) -> WeightSnapshot:
        """Take a snapshot of the weights, which `restore` returns to. Raises InputError if no disk has the space."""
        self.snapshot = WeightSnapshot(self.network)
        return self.snapshot

    def use_channels_last(self) -> None:
        """Change the weights of convolutions to the channels-last memory format (NHWC)."""
        self._strides = {weight: weight.stride() for weight in self.network.parameters()}
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def require_gradients(self) -> None:
        """Let only the trainable weights require a gradient, until `release`."""
        if self.trainable is not None:
            self._required = {weight: weight.requires_grad for weight in self.network.parameters()}
            chosen = set(self.trainable)
            for weight in self.network.parameters():
                weight.requires_grad_(weight in chosen)

    def restore(self) -> None:
        """Return to the given weights, if they were captured; `release` then gives the head back."""
        self._is_restored = True
        if self.snapshot is not None:
            self.snapshot.restore()

    def release(self) -> None:
        """Return to the given memory format, and after `restore` to the given head; the weights keep their values."""
        for weight, strides in self._strides.items():
            if weight.stride() != strides:
                weight.data = torch.empty_like(weight.data).as_strided(weight.shape, strides).copy_(weight.data)
        for weight, required in self._required.items():
            weight.requires_grad_(required)
        if self.head is not None and self._is_restored:
            self.head.give_back()
            self.head = self.snapshot = None
