"""A copy of a network's weights and buffers, to restore later."""

from __future__ import annotations

import torch
from torch import nn


class WeightSnapshot:
    """The state dict of a network at the time of construction or of the last `capture`."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._state = {name: value.detach().clone() for name, value in network.state_dict().items()}

    def capture(self) -> None:
        """Overwrite the snapshot with the network's current state, without allocating memory."""
        for name, value in self.network.state_dict().items():
            self._state[name].copy_(value)

    def restore(self) -> None:
        """Load the snapshot into the network."""
        self.network.load_state_dict(self._state)

    def matches_network(self) -> bool:
        """Return whether the network still has exactly this state."""
        return all(torch.equal(self._state[name], value) for name, value in self.network.state_dict().items())
