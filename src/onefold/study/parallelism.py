"""How many trials side by side, and how many threads each: found by measuring, not by guessing."""

from __future__ import annotations

import os
from dataclasses import dataclass

from onefold.engine import Call, Engine, Failed, Finished
from onefold.training import calls
from onefold.vocabulary.records import Config

SECONDS = 0.4  # of each measurement
WORTH_IT = 1.15  # more threads must be this much faster to be used


@dataclass(frozen=True, slots=True)
class Arrangement:
    """So many trials side by side with so many threads each."""

    parallel: int
    threads: int
    threads_of_few: tuple[tuple[int, int], ...]  # (n, threads): what at most n trials side by side get instead
    batches_per_s: dict[str, float]  # what was measured, as "2 trials x 1 thread" -> all trials together


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_workers(accelerator: str) -> int:
    """How many workers may be worth trying: one a core, but few on a GPU, where each holds memory of its own."""
    return cores() if accelerator == "cpu" else min(cores(), 4)


def measure(engine: Engine, config: Config, most_parallel: int) -> Arrangement:
    """Compares many trials of one thread with one trial of many threads, and what lies between, on the real workload.

    A workload that cannot be measured with this configuration gets one thread per trial.
    """
    figures: dict[tuple[int, int], float] = {}
    for parallel in _candidates(most_parallel):
        threads = max(1, cores() // parallel)
        paces = _paces(engine, config, parallel, threads)
        if not paces:
            return Arrangement(most_parallel, 1, (), {})
        figures[parallel, threads] = sum(paces)
    best = max(figures, key=lambda pair: (figures[pair], pair))
    bar = WORTH_IT * figures[best] / best[0]  # batches per second of one trial
    few = [pair for pair in figures if pair[0] < best[0] and figures[pair] / pair[0] > bar]
    return Arrangement(*best, tuple(sorted(few)), {_words(*pair): round(pace, 1) for pair, pace in figures.items()})


def _candidates(most_parallel: int) -> list[int]:
    """1, 2, 4, … and the most."""
    powers = [2**i for i in range(most_parallel.bit_length()) if 2**i < most_parallel]
    return [most_parallel, *reversed(powers)]


def _words(parallel: int, threads: int) -> str:
    return f"{parallel} trial{'s' * (parallel > 1)} x {threads} thread{'s' * (threads > 1)}"


def _paces(engine: Engine, config: Config, parallel: int, threads: int) -> list[float]:
    for _ in range(parallel):
        engine.start(Call(calls.throughput, (config, threads, SECONDS), cores=threads))
    paces: list[float] = []
    ended = 0
    while ended < parallel:
        for event in engine.wait(1.0):
            if isinstance(event, Finished):
                paces.append(event.value)
            ended += isinstance(event, (Finished, Failed))
    return paces if len(paces) == parallel else []
