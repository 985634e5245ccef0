"""Open what sets the knobs of a trial: a tuning session, the values in its configuration, or the defaults."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from onefold.meter import Meter
from onefold.processes import available_cores
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import TrainingState
from onefold.training.fixed_knobs import ConfiguredKnobs, DefaultKnobs
from onefold.training.job_clusters import open_clusterer
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext
from onefold.training.knobs.processor import machine_description
from onefold.training.splits import LoaderSettings
from onefold.vocabulary.knobs import KNOB_PREFIX

TrialKnobs = KnobSession | DefaultKnobs


def open_knobs(
    assignment: Assignment,
    state: TrainingState,
    meter: Meter,
    device: torch.device,
    loader: LoaderSettings | None,
    notes: Sequence[str] = (),
) -> TrialKnobs:
    """Return the tuning session of an assignment, or an object with the same interface if its knobs are fixed.

    `notes` are reported with its first epoch.
    """
    context = TrainingContext(
        state.model, state.optimizer, device, tuple(available_cores()), loader, assignment.knobs.optimize_for
    )
    configured = {
        name.removeprefix(KNOB_PREFIX): value
        for name, value in assignment.config.items()
        if name.startswith(KNOB_PREFIX)
    }
    if configured:
        return ConfiguredKnobs(context, configured)
    if assignment.knobs.mode == "off" and assignment.knobs.options:
        return ConfiguredKnobs.of_space(context, assignment.knobs.options)
    if assignment.knobs.mode == "off":
        return DefaultKnobs()
    return KnobSession(
        context,
        assignment.knobs,
        meter=meter,
        machine=machine_description(context),
        remembered=assignment.remembered,
        settled=state.settled,
        clusterer=open_clusterer(assignment.knobs.similarity),
        notes=notes,
    )
