"""Tune the knobs of the process while a plain function runs: each value that it yields ends a step."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import torch

from onefold.meter import Meter
from onefold.processes import available_cores
from onefold.training.assignment import Assignment
from onefold.training.job_clusters import open_clusterer
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext
from onefold.training.knobs.catalog import PROCESS_KNOBS
from onefold.training.knobs.processor import machine_description
from onefold.training.window_plan import FUNCTION_STEPS
from onefold.vocabulary.knobs import SettledKnobs
from onefold.vocabulary.records import from_json, to_json


def open_function_knobs(assignment: Assignment, meter: Meter, file: Path) -> KnobSession:
    """Return the tuning session of a plain function, which keeps the knobs that an earlier rung has left in a file."""
    # No knob of a process uses the network or the optimizer, and a function has neither.
    nothing = torch.nn.Identity()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    context = TrainingContext(
        nothing, optimizer, torch.device("cpu"), tuple(available_cores()), optimize_for=assignment.knobs.optimize_for
    )
    return KnobSession(
        context,
        assignment.knobs,
        meter=meter,
        machine=machine_description(context),
        remembered=assignment.remembered,
        settled=_read_settled(file),
        clusterer=open_clusterer(assignment.knobs.similarity),
        knobs=PROCESS_KNOBS,
        rules=FUNCTION_STEPS,
    )


def save_settled(settled: SettledKnobs, file: Path) -> None:
    """Leave the settled knobs of a function to its next rung."""
    file.parent.mkdir(parents=True, exist_ok=True)
    complete = file.with_suffix(".new")
    complete.write_text(json.dumps(to_json(settled)), encoding="utf-8")
    complete.replace(file)


def _read_settled(file: Path) -> SettledKnobs | None:
    with suppress(OSError, ValueError):
        return from_json(SettledKnobs, json.loads(file.read_text(encoding="utf-8")))
    return None
