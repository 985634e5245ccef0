"""What a network knew at some moment, to come back to."""

from __future__ import annotations

import torch
from torch import nn


class WeightSnapshot:
    """A copy of a network's weights and buffers."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._kept = {name: value.detach().clone() for name, value in network.state_dict().items()}

    def take(self) -> None:
        """Keeps what the network knows now instead."""
        for name, value in self.network.state_dict().items():
            self._kept[name].copy_(value)

    def put_back(self) -> None:
        """The network knows what it knew then."""
        self.network.load_state_dict(self._kept)

    def is_what_is_there(self) -> bool:
        """Whether nothing has changed since."""
        return all(torch.equal(self._kept[name], value) for name, value in self.network.state_dict().items())
