"""Measure on the workload how many trials to run in parallel, and with how many threads each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from onefold.engine import Call, CallFailed, CallFinished, Engine
from onefold.training import calls
from onefold.vocabulary.records import Config

MEASUREMENT_S = 0.4  # of each arrangement
MIN_SPEEDUP = 1.15  # that more threads must give to be used


@dataclass(frozen=True, slots=True)
class MeasuredParallelism:
    """The fastest arrangement of parallel trials and their threads."""

    parallel: int
    threads: int
    threads_of_few: tuple[tuple[int, int], ...]  # (n, threads): threads of each if at most n trials are left
    batches_per_s: dict[str, float]  # of all trials together, by arrangement: "2 trials x 1 thread"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_workers(accelerator: str, reserved: int = 0) -> int:
    """Return the most workers worth trying: one per core, but few on a GPU, where each holds its own memory.

    `reserved` cores are not for training.
    """
    free = max(1, cores() - reserved)
    return free if accelerator == "cpu" else min(free, 4)


def measure(
    engine: Engine, config: Config, most_parallel: int, *, are_tuned: bool, reserved: int = 0
) -> MeasuredParallelism:
    """Compare many single-threaded trials with fewer multi-threaded ones by training the workload for a moment.

    A workload that cannot be trained with this configuration gets one thread per trial. If the knobs of trials
    `are_tuned`, the last ones get all cores even if this configuration is no faster on them: others may be. `reserved`
    cores are not for training.
    """
    rates: dict[tuple[int, int], float] = {}
    for parallel in _candidates(most_parallel):
        threads = max(1, (cores() - reserved) // parallel)
        throughputs = _throughputs(engine, config, parallel, threads)
        if not throughputs:
            return MeasuredParallelism(most_parallel, 1, (), {})
        rates[parallel, threads] = sum(throughputs)
    best = max(rates, key=lambda pair: (rates[pair], pair))
    threshold = MIN_SPEEDUP * rates[best] / best[0]  # batches per second of one trial
    fewer = [pair for pair in rates if pair[0] < best[0]]
    few = fewer if are_tuned else [pair for pair in fewer if rates[pair] / pair[0] > threshold]
    return MeasuredParallelism(
        *best, tuple(sorted(few)), {_label(*pair): round(rate, 1) for pair, rate in rates.items()}
    )


def threads_of_functions(most_parallel: int) -> tuple[tuple[int, int], ...]:
    """Return (n, threads) of each trial if at most n are left, for functions whose knobs are tuned.

    Their throughput cannot be measured, but of the cores that they get, knobs choose those that help.
    """
    pairs = [(few, cores() // few) for few in _candidates(most_parallel) if few < most_parallel]
    return tuple(sorted(pair for pair in pairs if pair[1] > 1))


def _candidates(most_parallel: int) -> list[int]:
    """Return `most_parallel`, and the powers of two below it."""
    powers = [2**i for i in range(most_parallel.bit_length()) if 2**i < most_parallel]
    return [most_parallel, *reversed(powers)]


def _label(parallel: int, threads: int) -> str:
    return f"{parallel} trial{'s' * (parallel > 1)} x {threads} thread{'s' * (threads > 1)}"


def _throughputs(engine: Engine, config: Config, parallel: int, threads: int) -> list[float]:
    for _ in range(parallel):
        engine.start(Call(calls.throughput, (config, threads, MEASUREMENT_S), cores=threads))
    throughputs: list[float] = []
    ended = 0
    while ended < parallel:
        for event in engine.wait(1.0):
            if isinstance(event, CallFinished):
                throughputs.append(event.value)
            ended += isinstance(event, (CallFinished, CallFailed))
    return throughputs if len(throughputs) == parallel else []
