"""A copy of a network's weights and buffers on a disk, to restore later. It takes no memory."""

from __future__ import annotations

import os
from weakref import finalize

import torch
from torch import Tensor, nn

from onefold.retraining.disk_file import open_disk_file
from onefold.training.weights import tensor_bytes

COMPARED_BYTES = 2**20  # at once


class WeightSnapshot:
    """The state dict of a network at the time of construction or of the last `capture`."""

    def __init__(self, network: nn.Module) -> None:
        """Raise InputError if no disk has the space."""
        self.network = network
        self._file = open_disk_file(sum(tensor.nbytes for tensor in self._tensors()))
        finalize(self, self._file.close)
        self.capture()

    def capture(self) -> None:
        """Overwrite the snapshot with the network's current state."""
        self._file.seek(0)
        for tensor in self._tensors():
            self._file.write(tensor_bytes(tensor))
        self._file.flush()

    def sync(self) -> None:
        """Wait until the snapshot is on the disk, as files of a model folder must be."""
        os.fsync(self._file.fileno())

    @torch.no_grad()
    def restore(self) -> None:
        """Load the snapshot into the network."""
        self._file.seek(0)
        for tensor in self._tensors():
            is_readable = tensor.device.type == "cpu" and tensor.is_contiguous()
            target = tensor if is_readable else torch.empty(tensor.shape, dtype=tensor.dtype)
            self._file.readinto(tensor_bytes(target))  # type: ignore[attr-defined]
            if not is_readable:
                tensor.copy_(target)

    @torch.no_grad()
    def blend(self, share: float) -> None:
        """Move the network's floating-point weights toward the snapshot: 0 changes nothing, 1 is the snapshot."""
        self._file.seek(0)
        for tensor in self._tensors():
            captured = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._file.readinto(tensor_bytes(captured))  # type: ignore[attr-defined]
            if tensor.is_floating_point():
                tensor.lerp_(captured.to(tensor.device), share)

    def matches_network(self) -> bool:
        """Return whether the network still has exactly this state."""
        self._file.seek(0)
        for tensor in self._tensors():
            content = tensor_bytes(tensor)
            for start in range(0, len(content), COMPARED_BYTES):
                part = content[start : start + COMPARED_BYTES]
                if self._file.read(len(part)) != part:
                    return False
        return True

    def _tensors(self) -> list[Tensor]:
        """Return the tensors of the state dict. Extra state of modules is not part of a snapshot."""
        return [value.detach() for value in self.network.state_dict().values() if isinstance(value, Tensor)]
