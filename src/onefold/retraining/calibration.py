"""Calibration of a classifier that has learned new classes: as many of them as the old ones allow.

Two remedies against forgetting need no training: the weights move back toward those before it (WiSE-FT, Wortsman et
al. 2022), and the biases of the new classes fall (bias correction, Wu et al. 2019). The pair that is best on new data
is chosen among those whose accuracy on the judged half of the reference set is within the tolerance.
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

SHARES = (1.0, 0.75, 0.5, 0.25)  # of the change of the weights that is kept
CALIBRATION_EVALUATIONS = len(SHARES) + 2  # that it takes as long as: each share, and the result
MAX_POSITIONS = 1024  # of a sample with an output per pixel that are looked at
SHIFTS, MAX_MARGINS = 64, 2**20  # of the biases that are tried, and what they are chosen from


@dataclass(frozen=True)
class _Predictions:
    """What decides between old and new classes, for each sample."""

    margins: Tensor  # of the highest new logit over the highest old one
    old_is_right: Tensor
    new_is_right: Tensor

    def accuracy(self, shift: float) -> float:
        """Return the accuracy after the new logits are lowered."""
        return float(torch.where(self.margins > shift, self.new_is_right, self.old_is_right).float().mean())


class Calibration:
    """Calibrate the grown head of a network by the judged half of the reference set."""

    def __init__(self, job: RetrainingJob, head: GrownHead, evaluator: Evaluator) -> None:
        """Measure what must be kept. The network has the given weights, and rows for the new classes."""
        self.job, self.head, self.evaluator = job, head, evaluator
        judged = self._judged()
        self.needed = float(judged.old_is_right.float().mean()) - MAX_REFERENCE_LOSS

    def shift_biases(self) -> float:
        """Lower the biases of the new classes as is best for the network as it is; return by how much."""
        _, shift = self._best_shift() or (0.0, 0.0)
        self.lower_biases(shift)
        return shift

    def lower_biases(self, shift: float) -> None:
        """Lower the biases of the new classes."""
        if self.head.bias is not None and shift:
            with torch.no_grad():
                self.head.bias[self.head.old_classes :] -= shift

    def blend(self, start: WeightSnapshot) -> bool:
        """Move the network toward the weights before its training, and shift the biases, as is best.

        Returns False, with the network as it was, if the old classes are forgotten in any case.
        """
        trained = WeightSnapshot(self.job.network)
        best: tuple[float, float, float] | None = None  # accuracy on new data, share, shift
        kept = 1.0
        for share in SHARES:
            start.blend(1 - share / kept)
            kept = share
            found = self._best_shift()
            if found is not None and (best is None or found[0] > best[0]):
                best = found[0], share, found[1]
        trained.restore()
        if best is None:
            return False
        _, share, shift = best
        start.blend(1 - share)
        self.lower_biases(shift)
        return True

    def _best_shift(self) -> tuple[float, float] | None:
        """Return the highest accuracy on new data that keeps the old classes, and the shift of biases for it."""
        judged, fresh = self._judged(), self._predictions(self.evaluator.subset)
        margins = torch.cat([judged.margins, fresh.margins])
        margins = margins[:: max(1, len(margins) // MAX_MARGINS)].double()
        shifts = (
            torch.quantile(margins, torch.linspace(0, 1, SHIFTS).double()).tolist()
            if self.head.bias is not None
            else []
        )
        allowed = [shift for shift in (0.0, *shifts) if judged.accuracy(shift) >= self.needed]
        return max(((fresh.accuracy(shift), shift) for shift in allowed), default=None)

    def _judged(self) -> _Predictions:
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
