"""The time that the end of a retraining takes: evaluating, saving and ending, on this machine, as busy as it is now.

Evaluations are timed again and again, and writing and hashing once. What happens only at the end, such as the check of
an ONNX file, is predicted from its duration on an idle machine, a short piece of Python that is timed now, and
the contention of the last seconds; the more that scatters, the larger is the margin.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from statistics import median

from torch import nn

from onefold.retraining.contention import Contention
from onefold.retraining.save_cost import weight_bytes
from onefold.retraining.time_window import Clock
from onefold.retraining.weight_snapshot import WeightSnapshot

PIECES = 120
PIECE_S = 0.00037  # of the reference machine, idle
SAVE_S, EXIT_S = 0.2, 0.15  # there: report and cards; the output of a command and the end of its process
LESSONS_S, STORE_S = 0.02, 0.3  # there: writing what plans gained; loading and creating the store, if there is none
CHECK_S, CHECK_S_PER_BYTE = 0.1, 4e-9  # there: starting onnxruntime and running a network in it
EXPORT_S, EXPORT_S_PER_MODULE, EXPORT_S_PER_BYTE = 1.1, 4e-3, 1.1e-8  # there: imports, tracing and serializing
HASHED_BYTES = 2**20
RECENT = 5  # evaluations that count
MARGIN, MAX_SCATTER = 1.15, 2.0
SLACK_S = 0.1  # also the longest time that an evaluation may wait for the processor without counting as slow


def python_slowdown(processor_clock: Clock = time.thread_time) -> float:
    """Return how many times the processor time of the reference machine Python needs here."""
    content = {str(number): [number, number / 7, str(number)] for number in range(400)}
    started = processor_clock()
    for _ in range(PIECES):
        json.loads(json.dumps(content))
    return max(0.5, (processor_clock() - started) / PIECES / PIECE_S)


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

    collection_s: float  # of processor time to collect garbage, measured
    write_s: float  # to write files, measured with the weights
    save_s: float  # of processor time to save model and report, predicted
    exit_s: float  # of processor time from the report to the end of the process, predicted; 0 if it goes on
    contention: Contention
    samples: int = 0  # of a full evaluation
    evaluations: int = 2  # at the end: after the last micro-window, and of the best model so far
    expected_sample_s: float = 0.0  # of an evaluation, predicted: counts until one was observed
    is_given_evaluated: bool = True  # else the evaluation of the given model is still to come
    evaluated: list[tuple[float, int]] = field(default_factory=list)  # seconds and samples of all evaluations

    def observe(self, seconds: float, samples: int) -> None:
        """Record an evaluation."""
        self.evaluated.append((seconds, max(1, samples)))
        self.contention.note()

    @property
    def evaluation_s(self) -> float:
        """Seconds of a full evaluation now."""
        recent = self.evaluated[-RECENT:]
        if not recent:
            return self.samples * self.expected_sample_s
        usual = median(seconds / samples for seconds, samples in recent)
        return self.samples * max(usual, *((seconds - SLACK_S) / samples for seconds, samples in recent))

    @property
    def end_s(self) -> float:
        """Seconds from the last evaluation to the end of the process."""
        work_s = self.save_s + self.exit_s + self.collection_s
        return (work_s * self.contention.factor + self.write_s) * self.margin + SLACK_S

    @property
    def seconds(self) -> float:
        """Seconds from the last update to the end of the process: the evaluations, and what follows."""
        collection_s = self.collection_s * self.contention.factor
        evaluations = self.evaluations + (0 if self.is_given_evaluated else 1)
        return (evaluations * self.evaluation_s + collection_s) * self.margin + self.end_s

    @property
    def margin(self) -> float:
        """The factor for what cannot be foreseen; it grows with the scatter of the contention."""
        return MARGIN * min(MAX_SCATTER, self.contention.scatter)
