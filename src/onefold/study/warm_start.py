"""Warm start: the results of an earlier study as observations of a new one."""

from __future__ import annotations

from onefold.search import Observation
from onefold.store import Store
from onefold.study.spec import Spec
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.records import Metrics


def observations(spec: Spec, store: Store) -> tuple[Observation, ...]:
    """Return the results of the study that `spec.warm_start` names, in the terms of the new objective."""
    if not spec.warm_start:
        return ()
    other = Spec.from_json(store.study(spec.warm_start).spec)
    if other.space != spec.space:
        raise SpaceError(f"the study {spec.warm_start!r} has another space; a warm start needs the same space")
    results = [
        (trial, rung)
        for trial in store.trials(spec.warm_start)
        if fork_of(trial.config) is None
        for rung in trial.finished_rungs
        if all(metric in rung.metrics for metric in spec.objective.metrics)
    ]
    by_level: dict[int, list[Metrics]] = {}
    for _, rung in results:
        by_level.setdefault(rung.grant.level, []).append(rung.metrics)
    objectives = {level: spec.objective.settled(metrics) for level, metrics in by_level.items()}
    return tuple(
        Observation(
            -1 - trial.number,
            rung.grant.level,
            trial.config,
            spec.objective.losses(rung.metrics),
            objectives[rung.grant.level].violation(rung.metrics),
        )
        for trial, rung in results
    )
