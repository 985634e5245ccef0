"""Seeds of the random number generators."""

from __future__ import annotations

import hashlib
import random


def derive_seed(*parts: int) -> int:
    """Return a 32-bit seed that is a hash of several numbers."""
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def seed_everything(seed: int) -> None:
    """Seed torch (on all accelerators), the global generator of numpy, and `random`."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)  # workloads may use the global generator
    random.seed(seed)
