"""Latencies on one thread in processor time, which programs on the same machine hardly change."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

import numpy as np

from onefold.agent.inference_session import open_inference_session
from onefold.agent.probe_program import call_times
from onefold.agent.session_options import session_options
from onefold.serving.export import samples_beside
from onefold.vocabulary.serving import ServingPoint

VISIT_S, MIN_RUNS = 0.06, 5
Latencies = Mapping[tuple[str, int], list[float]]  # the median of each visit, by model and batch size


def latencies(models: Iterable[Path], batches: Iterable[int], rounds: int) -> Latencies:
    """Return the processor times of a run; models are visited in random order in every round."""
    rng, paths, visits = random.Random(0), list(models), dict[tuple[str, int], list[float]]()
    for _ in range(rounds):
        for model in rng.sample(paths, len(paths)):
            session = open_inference_session(model, session_options(ServingPoint()))
            with np.load(samples_beside(model)) as arrays:
                samples = {name: arrays[name] for name in arrays.files}
            for batch in batches:
                feed = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in samples.items()}
                times = call_times(lambda: session.run(None, feed), VISIT_S, MIN_RUNS, time.thread_time)  # noqa: B023
                visits.setdefault((model.stem, batch), []).append(median(times))
    return visits
