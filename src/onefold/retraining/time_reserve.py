"""The time that the end of a retraining takes: evaluating, saving and ending, on this machine, as busy as it is now.

Evaluations are timed again and again. What happens only once, such as exporting, is predicted from its duration on an
idle machine and from a short piece of Python that is timed now. If evaluations have become slower since, so has the
rest; the more their times scatter, the larger is the margin.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from torch import nn

from onefold.retraining.weight_snapshot import WeightSnapshot

PIECES = 120  # long enough for the scheduler of a busy machine to let others run in between
PIECE_S = 0.00037  # of the reference machine, idle
SAVE_S, EXIT_S = 0.35, 0.8  # there: report and cards; end of the process, which unmaps what torch has loaded
EXPORT_S, EXPORT_S_PER_MODULE, EXPORT_S_PER_BYTE = (
    1.2,
    4e-3,
    1.5e-8,
)  # there: imports, tracing, serializing and checking
WRITES = 4  # of the weights, with the previous ones and the digests of both
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


def export_s(network: nn.Module) -> float:
    """Return the seconds that exporting a network to ONNX takes on the idle reference machine."""
    weight_bytes = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    return EXPORT_S + EXPORT_S_PER_MODULE * sum(1 for _ in network.modules()) + EXPORT_S_PER_BYTE * weight_bytes


def time_write(snapshot: WeightSnapshot, clock: Clock = time.monotonic) -> float:
    """Return the seconds to write the weights onto the disk."""
    started = clock()
    snapshot.capture()
    snapshot.sync()
    return clock() - started


@dataclass
class TimeReserve:
    """Predict the seconds to leave for the end of a retraining."""

    collection_s: float  # to collect garbage, measured
    write_s: float  # to write the weights, measured
    save_s: float  # to save model and report, predicted
    exit_s: float  # from the report to the end of the process, predicted
    samples: int = 0  # of a full evaluation
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
        once = self.save_s + self.exit_s + WRITES * self.write_s + self.collection_s
        return once * self._slowdown * self.margin + SLACK_S

    @property
    def seconds(self) -> float:
        """Seconds from the last update to the end of the process: two evaluations, and what follows."""
        return (2 * self.evaluation_s + self.collection_s * self._slowdown) * self.margin + self.end_s

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
