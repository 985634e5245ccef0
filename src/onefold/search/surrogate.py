"""The training data of a surrogate model at one level.

A model of bounded size keeps the time of a draw bounded: beyond `MAX_FINISHED` results and failures the best and the
most recent ones are kept. TPE fits its good density to the 25 best, which stay; its bad density, whose kernels count
less the older they are, forgets the oldest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from onefold.search.optuna_study import REQUIREMENT, SpaceCodec, create_study
from onefold.vocabulary.pareto import fronts, spread
from onefold.vocabulary.records import Config

Coded = Mapping[str, float]

MAX_FINISHED = 500  # above, KEPT of them are kept, of which KEPT_BEST are the best
KEPT = 250
KEPT_BEST = 50
MAX_STALE = 4 * MAX_FINISHED  # trials in the optuna study, most of which have been withdrawn


@dataclass(eq=False)
class _SurrogateTrial:
    """A result, or a running trial if there are no losses."""

    coded: Coded
    losses: Sequence[float] | None = None
    violation: float = 0.0
    optuna_number: int | None = None  # None until it is in the optuna study


class SurrogateData:
    """Results, failures and running trials; an optuna study of them is kept up to date whenever a draw needs it."""

    def __init__(self, goals: int, distributions: Mapping[str, BaseDistribution], min_results: int) -> None:
        self._goals = goals
        self._distributions = distributions
        self._min_results = min_results
        self._entries: list[_SurrogateTrial] = []  # in the order of arrival
        self._results: dict[int, _SurrogateTrial] = {}  # by trial
        self._running: dict[int, _SurrogateTrial] = {}
        self._worst = [-math.inf] * goals
        self._failures: list[Coded] = []  # kept until there are enough results to know the worst
        self._constrained = False
        self._is_stale = True  # whether the optuna study must be created again
        self._size = 0  # trials in the optuna study
        self._new: list[_SurrogateTrial] = []  # not yet in the optuna study

    @property
    def is_ready(self) -> bool:
        """Return whether there are enough results to fit a model."""
        return len(self._results) >= self._min_results

    def propose(self, sampler: BaseSampler, codec: SpaceCodec, *, with_inactive: bool) -> Config:
        """Return what the sampler would try next, and discard the trial that was created to ask it."""
        self._update_study()
        self._study.sampler = sampler
        trial = self._study.ask()
        self._size += 1
        config = codec.suggest(trial, with_inactive=with_inactive)
        self._study.tell(trial, state=TrialState.FAIL)
        return config

    def add_result(self, number: int, coded: Coded, losses: Sequence[float], violation: float) -> None:
        """Add the result of trial `number`."""
        entry = self._results[number] = _SurrogateTrial(coded, losses, violation)
        self._add(entry)
        self._worst = [max(pair) for pair in zip(self._worst, losses)]
        if self.is_ready:
            while self._failures:
                self._add(_SurrogateTrial(self._failures.pop(0), self._worst))

    def correct(self, number: int, violation: float) -> bool:
        """Replace the violation of a result; return False if trial `number` has none yet."""
        if number not in self._results:
            return False
        self._is_stale = self._is_stale or self._results[number].violation != violation
        self._results[number].violation = violation
        return True

    def add_failure(self, coded: Coded) -> None:
        """Add a failure, as bad as the worst result."""
        if self.is_ready:
            self._add(_SurrogateTrial(coded, self._worst))
        else:
            self._failures.append(coded)

    def add_running(self, number: int, coded: Coded) -> None:
        """Keep the model away from the configuration of running trial `number`."""
        entry = self._running[number] = _SurrogateTrial(coded)
        self._append(entry)

    def remove_running(self, number: int) -> None:
        """Forget a running trial."""
        entry = self._running.pop(number)
        self._entries.remove(entry)
        if self._is_stale:
            return
        if entry.optuna_number is None:
            self._new.remove(entry)
        else:
            self._study.tell(entry.optuna_number, state=TrialState.FAIL)

    def _append(self, entry: _SurrogateTrial) -> None:
        self._entries.append(entry)
        if not self._is_stale:
            self._new.append(entry)

    def _add(self, entry: _SurrogateTrial) -> None:
        self._append(entry)
        self._is_stale = self._is_stale or (entry.violation > 0 and not self._constrained)
        if len(self._entries) - len(self._running) > MAX_FINISHED:
            self._entries = _kept(self._entries)
            self._is_stale = True

    def _update_study(self) -> None:
        if self._is_stale or self._size > MAX_STALE:
            self._study, self._size = create_study(self._goals), 0
            self._new = self._entries
            # Optuna takes constraints of all trials or of none, and fits faster without.
            self._constrained = any(entry.violation > 0 for entry in self._entries)
            self._is_stale = False
        for entry in self._new:
            self._insert(entry)
        self._new = []

    def _insert(self, entry: _SurrogateTrial) -> None:
        is_done = entry.losses is not None
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if is_done else TrialState.RUNNING,
                params=dict(entry.coded),
                distributions={name: self._distributions[name] for name in entry.coded},
                values=entry.losses,
                constraints={REQUIREMENT: entry.violation} if is_done and self._constrained else None,
            )
        )
        entry.optuna_number = self._size
        self._size += 1


def _kept(entries: Sequence[_SurrogateTrial]) -> list[_SurrogateTrial]:
    """Return the running entries, the best and the most recent ones, in the order of arrival."""
    finished = [entry for entry in entries if entry.losses is not None]
    best = {id(entry) for entry in _by_quality(finished)[:KEPT_BEST]}
    recent = [entry for entry in finished if id(entry) not in best][KEPT_BEST - KEPT :]
    kept = best | {id(entry) for entry in recent}
    return [entry for entry in entries if entry.losses is None or id(entry) in kept]


def _by_quality(entries: Sequence[_SurrogateTrial]) -> list[_SurrogateTrial]:
    """Return the entries as TPE splits them: feasible ones first, by loss or by non-dominated front."""
    feasible = [entry for entry in entries if entry.violation <= 0]
    violating = sorted((entry for entry in entries if entry.violation > 0), key=lambda entry: entry.violation)
    losses = [entry.losses or () for entry in feasible]
    order: list[int] = []
    for front in fronts(losses):
        order += [front[at] for at in spread([losses[i] for i in front])]
    return [feasible[i] for i in order] + violating
