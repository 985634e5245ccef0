"""The keys of stored memory measurements: the signature of the network and the description of the machine."""

from __future__ import annotations

import hashlib
import os
import platform

import torch
from torch import nn


def network_signature(network: nn.Module) -> str:
    """Hash what the memory of a network depends on: names and shapes of its weights, and its modules."""
    shapes = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    return hashlib.sha256(repr((shapes, str(network))).encode()).hexdigest()[:16]


def machine_description(accelerator: torch.device) -> str:
    """Describe what the memory and the speed of a retraining depend on."""
    processor = torch.cuda.get_device_name(accelerator) if accelerator.type == "cuda" else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, torch {torch.__version__}"
