"""PyTorch's fused attention, which is neither exported nor traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_fused_attention() -> Iterator[None]:
    """Compute attention with standard operators: the fused inference kernels skip modules and zero padding."""
    import torch

    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
