"""One place that seeds every random generator a workload may use."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds torch (all accelerators), numpy's global generator and `random`."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # workloads may use the global generator
    random.seed(seed)
