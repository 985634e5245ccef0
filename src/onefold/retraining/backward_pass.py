"""Going backward from a tensor with the gradient that arrived there.

`torch.autograd.backward` does the same, but checks a given gradient with a library for symbolic mathematics, whose
import takes 25 MB.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge


def run_backward(edge: GradientEdge, gradient: Tensor) -> None:
    """Adds to the gradients of all that led to this place in the graph."""
    _engine_run_backward((edge,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradient_edge(output: Tensor) -> GradientEdge:
    """The place in the graph where a tensor was made: with it one can go back when the tensor itself is gone."""
    return get_gradient_edge(output)
