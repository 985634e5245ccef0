"""Calibration of a classifier that has learned new classes, so that it does not forget the old ones.

Two remedies against forgetting need no training: interpolating the weights with those before training (WiSE-FT,
Wortsman et al. 2022), and lowering the biases of the new classes (bias correction, Wu et al. 2019). Of all pairs of an
interpolation share and a bias shift whose accuracy on half of the reference set is within the tolerance, the one with
the highest accuracy on new data is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onefold.retraining.evaluation import MAX_REFERENCE_LOSS, Evaluator
from onefold.retraining.job import RetrainingJob
from onefold.retraining.samples import Samples
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.training.classification_head import GrownHead

SHARES = (1.0, 0.75, 0.5, 0.25)  # of the weight change by training that is kept
CALIBRATION_EVALUATIONS = len(SHARES) + 2  # duration of a calibration in full evaluations
MAX_POSITIONS = 1024  # of a sample with an output per pixel; others are ignored
SHIFTS, MAX_MARGINS = 64, 2**20  # bias shifts that are tried: quantiles of at most so many margins


@dataclass(frozen=True)
class _Predictions:
    """For each sample, which class an old and a new head would predict, and which of them prevails."""

    margins: Tensor  # highest new logit minus highest old logit
    old_is_right: Tensor
    new_is_right: Tensor

    def accuracy(self, shift: float) -> float:
        """Return the accuracy if all new logits are lowered by `shift`."""
        return float(torch.where(self.margins > shift, self.new_is_right, self.old_is_right).float().mean())


class Calibration:
    """Calibrate the grown head of a network on half of the reference set."""

    def __init__(self, job: RetrainingJob, head: GrownHead, evaluator: Evaluator) -> None:
        """Measure the accuracy on old classes to keep, of a network with the given weights and rows for new classes."""
        self.job, self.head, self.evaluator = job, head, evaluator
        reference = self._reference_predictions()
        self.min_accuracy = float(reference.old_is_right.float().mean()) - MAX_REFERENCE_LOSS

    def shift_biases(self) -> float:
        """Lower the biases of the new classes by the best shift for the present weights; return the shift."""
        _, shift = self._best_shift() or (0.0, 0.0)
        self.lower_biases(shift)
        return shift

    def lower_biases(self, shift: float) -> None:
        """Lower the biases of the new classes."""
        if self.head.bias is not None and shift:
            with torch.no_grad():
                self.head.bias[self.head.old_classes :] -= shift

    def blend(self, start: WeightSnapshot) -> bool:
        """Interpolate the weights with those before training, and lower the biases, by the best share and shift.

        Returns False, and leaves the network unchanged, if every share forgets the old classes.
        """
        trained = WeightSnapshot(self.job.network)
        best: tuple[float, float, float] | None = None  # accuracy on new data, share, shift
        present_share = 1.0
        for share in SHARES:
            start.blend(1 - share / present_share)
            present_share = share
            candidate = self._best_shift()
            if candidate is not None and (best is None or candidate[0] > best[0]):
                best = candidate[0], share, candidate[1]
        trained.restore()
        if best is None:
            return False
        _, share, shift = best
        start.blend(1 - share)
        self.lower_biases(shift)
        return True

    def _best_shift(self) -> tuple[float, float] | None:
        """Return the highest accuracy on new data that keeps the old classes, and the shift of biases for it."""
        reference, fresh = self._reference_predictions(), self._predictions(self.evaluator.subset)
        margins = torch.cat([reference.margins, fresh.margins])
        margins = margins[:: max(1, len(margins) // MAX_MARGINS)].double()
        shifts = (
            torch.quantile(margins, torch.linspace(0, 1, SHIFTS).double()).tolist()
            if self.head.bias is not None
            else []
        )
        allowed = [shift for shift in (0.0, *shifts) if reference.accuracy(shift) >= self.min_accuracy]
        return max(((fresh.accuracy(shift), shift) for shift in allowed), default=None)

    def _reference_predictions(self) -> _Predictions:
        reference = self.job.data.reference
        if reference is None:
            raise RuntimeError("a calibration needs a reference set")
        return self._predictions(reference.judged)

    def _predictions(self, samples: Samples) -> _Predictions:
        self.job.network.eval()
        parts: list[tuple[Tensor, ...]] = []
        old_classes = self.head.old_classes
        with torch.no_grad():
            for *inputs, targets in samples.batches(self.evaluator.batch_size):
                logits = self.job.network(*inputs).movedim(1, -1).reshape(len(targets), -1, self.head.classes)
                every = max(1, logits.shape[1] // MAX_POSITIONS)
                logits, flat = logits[:, ::every], targets.reshape(len(targets), -1)[:, ::every]
                old, new = logits[..., :old_classes].max(-1), logits[..., old_classes:].max(-1)
                part = new.values - old.values, old.indices == flat, new.indices + old_classes == flat
                parts.append(tuple(values.flatten().cpu() for values in part))
        margins, old_is_right, new_is_right = (torch.cat(values) for values in zip(*parts))
        return _Predictions(margins.float(), old_is_right, new_is_right)
