"""Public functions over remembered knobs: list, export and import them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from onefold.store.home import Home
from onefold.training.knob_memory import group_numbers
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import KnobMemory
from onefold.vocabulary.records import to_json
from onefold.vocabulary.typed_json import checked_from_json

KIND, VERSION = "onefold knobs", 1
MAX_FEATURE = 1000.0  # of any profile


def remembered_knobs(home: str | Path | Home | None = None) -> list[KnobMemory]:
    """Return the best knobs of all earlier jobs.

    Args:
        home: The home of Onefold; the default is `$ONEFOLD_HOME` or the data folder of the user.

    Returns:
        One record per job: its machine, profile, best knobs, and the cost of a step without and with them.
    """
    with closing(_home(home).store()) as store:
        return store.knob_memories()


def knob_groups(memories: Sequence[KnobMemory]) -> list[int]:
    """Return the number of each job's group: jobs of a group have similar profiles and reuse each other's knobs.

    Args:
        memories: Jobs as returned by `remembered_knobs`.

    Returns:
        One number per job; the largest group has the number 1.
    """
    return group_numbers(memories)


def export_knobs(path: str | Path, home: str | Path | Home | None = None) -> int:
    """Write all remembered knobs to a JSON file.

    For each job it contains the processor's name, the number of cores and the version of torch; what the knobs were
    optimized for, and whether they might reduce the precision; the best knobs; the cost of a step without and with
    them; the load of other processes; and the profile: the shares of kinds of operators, the sizes of a step
    (operators, elements, floating-point operations; processor time for a function), the processor time and page faults
    of the process, and performance counters. It contains no data, no weights, no code, no names of workloads and no
    hyperparameters; the sizes say roughly how large the network and its batches are.

    Args:
        path: The file to write.
        home: The home of Onefold; the default is `$ONEFOLD_HOME` or the data folder of the user.

    Returns:
        The number of jobs in the file.

    Raises:
        InputError: The file cannot be written.
    """
    memories = remembered_knobs(home)
    content = {"kind": KIND, "version": VERSION, "remembered": to_json(memories)}
    try:
        Path(path).write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return len(memories)


def import_knobs(path: str | Path, home: str | Path | Home | None = None) -> int:
    """Remember the knobs in a file that `export_knobs` wrote: a warm start on the same kind of machine.

    Args:
        path: The file to read.
        home: The home of Onefold; the default is `$ONEFOLD_HOME` or the data folder of the user.

    Returns:
        The number of jobs in the file.

    Raises:
        InputError: The file cannot be read, or is not an export of knobs.
    """
    try:
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"expected an object with jobs, got a {type(content).__name__}")
        if content["kind"] != KIND or content["version"] > VERSION:
            raise ValueError(f"it is a {content['kind']} of version {content['version']}")
        memories = [
            _checked(checked_from_json(KnobMemory, memory, f"remembered[{number}]"))
            for number, memory in enumerate(content["remembered"])
        ]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not an export of knobs: {error}") from error
    with closing(_home(home).store()) as store, store.transaction():
        for memory in memories:
            store.save_knob_memory(memory)
    return len(memories)


def _checked(memory: KnobMemory) -> KnobMemory:
    """Return a memory whose numbers are possible; raise ValueError for any other, which may be near every job."""
    costs = {"found": memory.found, "reached": memory.reached}
    for name, number in {**memory.profile.features, **costs, "load": memory.load}.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"{name} of a job is {number}, but must be a finite number")
    for name, cost in costs.items():
        if cost <= 0:
            raise ValueError(f"{name} of a job is {cost}, but must be positive")
    for name, feature in memory.profile.features.items():
        if abs(feature) > MAX_FEATURE:
            raise ValueError(f"{name} of a job is {feature}, but must be at most {MAX_FEATURE:g} in magnitude")
    return memory


def _home(home: str | Path | Home | None) -> Home:
    return home if isinstance(home, Home) else Home(home)
