"""Weights of an ONNX graph in the order in which PyTorch's layers take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onefold.vocabulary.errors import ModelError

Array = np.ndarray[Any, Any]
Keep = Callable[[str, Array], None]
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # ONNX's gates in the order of PyTorch's
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}


def with_ordered_weights(
    kind: str, given: Sequence[str], attributes: Mapping[str, Any], constants: Mapping[str, Array], keep: Keep
) -> tuple[str, list[str], Mapping[str, Any]]:
    """Return a node whose constant weights PyTorch takes as they are; `keep` receives those that were rearranged.

    Raises ModelError for a recurrent layer that PyTorch does not have.
    """
    if kind in GATES:
        return kind, _recurrent(kind, given, attributes, constants, keep), attributes
    if kind == "MatMul" and constants.get(given[1], np.empty(0)).ndim == 2:
        return "Gemm", [given[0], _transposed(given[1], constants, keep)], {"transB": 1}
    if kind == "Gemm" and not attributes.get("transB", 0) and given[1] in constants:
        return kind, [given[0], _transposed(given[1], constants, keep), *given[2:]], {**attributes, "transB": 1}
    return kind, list(given), attributes


def _transposed(name: str, constants: Mapping[str, Array], keep: Keep) -> str:
    new = f"{name} transposed"
    if new not in constants:
        keep(new, np.ascontiguousarray(constants[name].T))
    return new


def _recurrent(
    kind: str, given: Sequence[str], attributes: Mapping[str, Any], constants: Mapping[str, Array], keep: Keep
) -> list[str]:
    """Return the arguments of a recurrent layer: the input, the initial states, and the weights of each direction."""
    x, weights, recurrent, biases, lengths, *states = [*given, "", "", "", "", ""][: 5 + STATES[kind]]
    if lengths:
        raise ModelError("sequences of several lengths are not supported")
    is_plain = attributes.get("direction", b"forward") != b"reverse" and not attributes.get("layout", 0)
    activations = attributes.get("activations", [])
    if kind == "RNN" and any(name != b"Tanh" for name in activations):
        is_plain = False
    if not is_plain or (kind == "GRU" and not attributes.get("linear_before_reset", 0)):
        raise ModelError(f"this form of a layer of type {kind} is not supported")
    hidden, names = attributes["hidden_size"], []
    for direction in range(constants[weights].shape[0]):
        parts = [constants[weights][direction], constants[recurrent][direction]]
        if biases:
            parts += list(np.split(constants[biases][direction], 2))
        for at, part in enumerate(parts):
            gates = [part[gate * hidden : (gate + 1) * hidden] for gate in GATES[kind]]
            names.append(f"{weights} {direction} {at}")
            if names[-1] not in constants:
                keep(names[-1], np.concatenate(gates))
    return [x, *states, *names]
