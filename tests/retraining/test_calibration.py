"""Calibration trades new classes for old ones, and never below what is needed."""

from __future__ import annotations

import torch

from onefold.retraining.calibration import _Predictions


def test_lower_biases_give_old_classes_back() -> None:
    predictions = _Predictions(
        torch.tensor([-1.0, 0.5, 2.0, 3.0]),
        torch.tensor([True, True, True, False]),
        torch.tensor([False, False, False, True]),
    )
    assert predictions.accuracy(0.0) == 0.5
    assert predictions.accuracy(1.0) == 0.75
    assert predictions.accuracy(2.5) == 1.0
    assert predictions.accuracy(4.0) == 0.75
