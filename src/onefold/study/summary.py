"""What the report needs to know of a study, out of the store."""

from __future__ import annotations

from onefold.report import Summary, summarize
from onefold.store import Store
from onefold.study.spec import Spec


def summary_of(name: str, store: Store) -> Summary:
    """The summary of a study as it stands."""
    record = store.study(name)
    spec = Spec.from_json(record.spec)
    return summarize(
        record,
        store.trials(name),
        store.epochs(name),
        servings=store.trial_surfaces(name),
        devices=[device.name for device in spec.devices],
        quality=spec.quality.goals[0] if spec.quality is not None else None,
        steered=store.knob_records(name),
    )
