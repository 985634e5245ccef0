"""The training data of a surrogate model at one level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from onefold.search.optuna_study import REQUIREMENT, SpaceCodec, create_study
from onefold.vocabulary.records import Config

Coded = Mapping[str, float]


@dataclass(eq=False)
class _Entry:
    """A result, or a running trial if there are no losses."""

    coded: Coded
    losses: Sequence[float] | None = None
    violation: float = 0.0


class SurrogateData:
    """An optuna study of results, failures and running trials; rebuilt when a result is corrected."""

    def __init__(self, goals: int, distributions: Mapping[str, BaseDistribution], min_results: int) -> None:
        self._goals = goals
        self._distributions = distributions
        self._min_results = min_results
        self._entries: list[_Entry] = []  # in the order of arrival
        self._results: dict[int, _Entry] = {}  # by trial
        self._running: dict[int, _Entry] = {}
        self._worst = [-math.inf] * goals
        self._failures: list[Coded] = []  # kept until there are enough results to know the worst
        self._constrained = self._corrected = False
        self._rebuild()

    @property
    def is_ready(self) -> bool:
        """Return whether there are enough results to fit a model."""
        return len(self._results) >= self._min_results

    def propose(self, sampler: BaseSampler, codec: SpaceCodec, *, with_inactive: bool) -> Config:
        """Return what the sampler would try next, and discard the trial that was created to ask it."""
        if self._corrected:
            self._rebuild()
        self._study.sampler = sampler
        trial = self._study.ask()
        next(self._counter)
        config = codec.suggest(trial, with_inactive=with_inactive)
        self._study.tell(trial, state=TrialState.FAIL)
        return config

    def add_result(self, number: int, coded: Coded, losses: Sequence[float], violation: float) -> None:
        """Add the result of trial `number`."""
        entry = self._results[number] = _Entry(coded, losses, violation)
        self._add(entry)
        self._worst = [max(pair) for pair in zip(self._worst, losses)]
        if self.is_ready:
            while self._failures:
                self._add(_Entry(self._failures.pop(0), self._worst))

    def correct(self, number: int, violation: float) -> bool:
        """Replace the violation of a result; return False if trial `number` has none yet."""
        if number not in self._results:
            return False
        self._corrected = self._corrected or self._results[number].violation != violation
        self._results[number].violation = violation
        return True

    def add_failure(self, coded: Coded) -> None:
        """Add a failure, as bad as the worst result."""
        if self.is_ready:
            self._add(_Entry(coded, self._worst))
        else:
            self._failures.append(coded)

    def add_running(self, number: int, coded: Coded) -> None:
        """Keep the model away from the configuration of running trial `number`."""
        entry = self._running[number] = _Entry(coded)
        self._entries.append(entry)
        self._optuna_numbers[number] = self._insert(entry)

    def remove_running(self, number: int) -> None:
        """Forget a running trial."""
        self._entries.remove(self._running.pop(number))
        self._study.tell(self._optuna_numbers.pop(number), state=TrialState.FAIL)

    def _rebuild(self) -> None:
        """Create the optuna study from all entries, in the order of arrival."""
        self._study = create_study(self._goals)
        self._counter = count()
        self._corrected = False
        # Optuna takes constraints of all trials or of none, and fits faster without.
        self._constrained = any(entry.violation > 0 for entry in self._entries)
        optuna_numbers = [self._insert(entry) for entry in self._entries]
        numbers = {id(entry): number for number, entry in self._running.items()}
        # Our number of a running trial -> optuna's.
        self._optuna_numbers = {
            numbers[id(entry)]: number for entry, number in zip(self._entries, optuna_numbers) if id(entry) in numbers
        }

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._corrected = self._corrected or (entry.violation > 0 and not self._constrained)
        self._insert(entry)

    def _insert(self, entry: _Entry) -> int:
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
        return next(self._counter)
