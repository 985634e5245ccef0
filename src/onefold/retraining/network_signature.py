"""The signature of a network, by which measurements of its memory are found again."""

from __future__ import annotations

import hashlib

from torch import nn


def network_signature(network: nn.Module) -> str:
    """Hash what the memory of a network depends on: names and shapes of its weights, and its modules."""
    shapes = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    return hashlib.sha256(repr((shapes, str(network))).encode()).hexdigest()[:16]
