"""What an earlier study found out, for one that begins with it."""

from __future__ import annotations

from onefold.search import Observation
from onefold.store import Store
from onefold.study.spec import Spec
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Metrics


def observations(spec: Spec, store: Store) -> tuple[Observation, ...]:
    """What the study that this one begins with found out, in the terms of this one's objective."""
    if not spec.warm_start:
        return ()
    other = Spec.from_json(store.study(spec.warm_start).spec)
    if other.space != spec.space:
        raise SpaceError(f"the study {spec.warm_start!r} has another space; a warm start needs the same one")
    found = [
        (trial, rung)
        for trial in store.trials(spec.warm_start)
        for rung in trial.finished_rungs
        if all(metric in rung.metrics for metric in spec.objective.metrics)
    ]
    by_level: dict[int, list[Metrics]] = {}
    for _, rung in found:
        by_level.setdefault(rung.grant.level, []).append(rung.metrics)
    judges = {level: spec.objective.settled(results) for level, results in by_level.items()}
    return tuple(
        Observation(
            -1 - trial.number,
            rung.grant.level,
            trial.config,
            spec.objective.losses(rung.metrics),
            judges[rung.grant.level].violation(rung.metrics),
        )
        for trial, rung in found
    )
