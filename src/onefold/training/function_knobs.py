"""Tune the knobs of the process while a plain function runs: each value that it yields ends a step."""

from __future__ import annotations

import torch

from onefold.meter import Meter
from onefold.processes import available_cores
from onefold.training.assignment import Assignment
from onefold.training.job_clusters import open_clusterer
from onefold.training.knob_planner import FUNCTION_STEPS
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext
from onefold.training.knobs.catalog import PROCESS_KNOBS
from onefold.training.knobs.processor import machine_description


def open_function_knobs(assignment: Assignment, meter: Meter) -> KnobSession:
    """Return the tuning session of a plain function."""
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
        clusterer=open_clusterer(assignment.knobs.similarity),
        knobs=PROCESS_KNOBS,
        rules=FUNCTION_STEPS,
    )
