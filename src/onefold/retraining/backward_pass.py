"""The backward pass from a tensor with a given gradient.

`torch.autograd.backward` does the same, but validates the gradient with sympy, whose import takes 25 MB.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge


def run_backward(edge: GradientEdge, gradient: Tensor) -> None:
    """Accumulate the gradients of all leaves that lead to this edge of the autograd graph."""
    _engine_run_backward((edge,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradient_edge(output: Tensor) -> GradientEdge:
    """Return the edge of the autograd graph that produced a tensor; it stays valid after the tensor is freed."""
    return get_gradient_edge(output)
