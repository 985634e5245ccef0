"""Going backward from a tensor with the gradient that arrived there.

`torch.autograd.backward` does the same, but checks a given gradient with a library for symbolic mathematics, whose
import takes 25 MB.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from torch.autograd.graph import _engine_run_backward as _run
except ImportError:  # another torch
    _run = None  # type: ignore[assignment]


def go_back(output: Tensor, gradient: Tensor) -> None:
    """Adds to the gradients of all that `output` was made from."""
    if _run is None:
        torch.autograd.backward(output, gradient)
    else:
        _run((output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
