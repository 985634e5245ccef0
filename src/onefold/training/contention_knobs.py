"""The knobs that depend on contention: threads, and the cores that they run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onefold.training.knob_search import Options, Setting
from onefold.training.knobs import AvailableKnobs

LOAD_TOLERANCE = 0.5  # cores of other processes by which the load may change
THREADS_KNOB = "threads"
AFFINITY_KNOB = "cores"  # only probed under contention
CONTENTION_KNOBS = (THREADS_KNOB, AFFINITY_KNOB)  # their best values depend on other processes


def contention_knobs(setting: Setting, load: float, available: AvailableKnobs) -> Options:
    """Return the options of the knobs that depend on contention, the current number of threads first.

    All cores are first, since on fewer no more threads can be tried. `load` is that of other processes, in cores.
    """
    knobs = {name: options for name, options in available.options.items() if name in CONTENTION_KNOBS}
    has_affinity = setting.get(AFFINITY_KNOB) != available.defaults.get(AFFINITY_KNOB)
    return {
        name: options if name == AFFINITY_KNOB else tuple(dict.fromkeys([setting.get(name, options[0]), *options]))
        for name, options in (knobs if has_affinity else without_affinity(knobs, load)).items()
    }


def without_affinity(knobs: Options, load: float) -> dict[str, Any]:
    """Return knobs without core affinity, unless other processes are running."""
    return {name: options for name, options in knobs.items() if name != AFFINITY_KNOB or load >= LOAD_TOLERANCE}


def with_a_core_per_thread(setting: Setting) -> Setting:
    """Return a setting as it is applied: with no more threads than cores."""
    threads, cores = setting.get(THREADS_KNOB), setting.get(AFFINITY_KNOB)
    if isinstance(threads, int) and isinstance(cores, int) and threads > cores:
        return {**setting, THREADS_KNOB: cores}
    return setting


def uses_all_cores(setting: Mapping[str, Any], available: AvailableKnobs) -> bool:
    """Return whether a trial uses all of its cores, with a thread each."""
    has_affinity = setting.get(AFFINITY_KNOB) != available.defaults.get(AFFINITY_KNOB)
    most_threads = max((int(count or 1) for count in available.options.get(THREADS_KNOB, ())), default=1)
    return not has_affinity and setting.get(THREADS_KNOB, 1) == most_threads
