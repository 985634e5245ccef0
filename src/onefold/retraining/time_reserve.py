"""The time that the end of a retraining takes: evaluating, saving and ending, on this machine, as busy as it is now.

Evaluations are timed again and again, and writing and hashing once. What happens only at the end, such as the check of
an ONNX file, is predicted from its duration on an idle machine and from a short piece of Python that is timed now. If
evaluations have become slower since, so has the rest; the more their times scatter, the larger is the margin.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from torch import nn

from onefold.retraining.save_cost import weight_bytes
from onefold.retraining.weight_snapshot import WeightSnapshot

PIECES = 120  # long enough for the scheduler of a busy machine to let others run in between
PIECE_S = 0.00037  # of the reference machine, idle
SAVE_S, EXIT_S = 0.2, 0.15  # there: report and cards; the output of a command and the end of its process
CHECK_S, CHECK_S_PER_BYTE = 0.1, 4e-9  # there: starting onnxruntime and running a network in it
EXPORT_S, EXPORT_S_PER_MODULE, EXPORT_S_PER_BYTE = 1.1, 4e-3, 1.1e-8  # there: imports, tracing and serializing
HASHED_BYTES = 2**20
RECENT = 5  # evaluations that count
MARGIN, MAX_JITTER = 1.15, 3.0
SLACK_S = 0.1
Clock = Callable[[], float]


def python_slowdown(clock: Clock = time.monotonic) -> float:
    """Return how much slower than on the idle reference machine Python runs now."""
    content = {str(number): [number, number / 7, str(number)] for number in range(400)}
    started = clock()
    for _ in range(PIECES):
        json.loads(json.dumps(content))
    return max(0.5, (clock() - started) / PIECES / PIECE_S)


def save_s(network: nn.Module, *, is_served: bool, is_exchanged: bool = False) -> float:
    """Return the seconds that saving a network takes on the idle reference machine, besides writing files.

    The arguments are those of `save_cost.save_bytes`.
    """
    size = weight_bytes(network)
    seconds = SAVE_S + (CHECK_S + CHECK_S_PER_BYTE * size if is_served else 0.0)
    if is_served and not is_exchanged:
        seconds += EXPORT_S + EXPORT_S_PER_MODULE * sum(1 for _ in network.modules()) + EXPORT_S_PER_BYTE * size
    return seconds


def time_write(snapshot: WeightSnapshot, clock: Clock = time.monotonic) -> float:
    """Return the seconds to write the weights onto the disk and to compute their digest."""
    content = bytes(HASHED_BYTES)
    started = clock()
    hashlib.sha256(content)
    hashing_s = (clock() - started) * weight_bytes(snapshot.network) / HASHED_BYTES
    started = clock()
    snapshot.capture()
    snapshot.sync()
    return clock() - started + hashing_s


@dataclass
class TimeReserve:
    """Predict the seconds to leave for the end of a retraining."""

    collection_s: float  # to collect garbage, measured
    write_s: float  # to write files, measured with the weights
    save_s: float  # to save model and report, predicted
    exit_s: float  # from the report to the end of the process, predicted; 0 if it goes on
    samples: int = 0  # of a full evaluation
    evaluations: int = 2  # at the end: of the last model and of the best
    sample_s: list[float] = field(default_factory=list)  # seconds per sample of all evaluations

    def observe(self, seconds: float, samples: int) -> None:
        """Record an evaluation."""
        self.sample_s.append(seconds / max(1, samples))

    @property
    def evaluation_s(self) -> float:
        """Seconds of a full evaluation now."""
        return self.samples * max(self._recent, default=0.0)

    @property
    def end_s(self) -> float:
        """Seconds from the last evaluation to the end of the process."""
        once = self.save_s + self.exit_s + self.write_s + self.collection_s
        return once * self._slowdown * self.margin + SLACK_S

    @property
    def seconds(self) -> float:
        """Seconds from the last update to the end of the process: the evaluations, and what follows."""
        return (self.evaluations * self.evaluation_s + self.collection_s * self._slowdown) * self.margin + self.end_s

    @property
    def margin(self) -> float:
        """The factor for what cannot be foreseen; it grows with the scatter of the times that were measured."""
        return MARGIN * jitter(self._recent)

    @property
    def _recent(self) -> Sequence[float]:
        return self.sample_s[-RECENT:]

    @property
    def _slowdown(self) -> float:
        if not self.sample_s or self.sample_s[0] <= 0:
            return 1.0
        return max(1.0, max(self._recent) / self.sample_s[0])


def jitter(times: Sequence[float]) -> float:
    """Return the longest of some times relative to the usual one, from 1 to MAX_JITTER."""
    usual = median(times) if times else 0.0
    return min(MAX_JITTER, max(times) / usual) if usual > 0 and math.isfinite(usual) else 1.0
