"""What is known at one level, as a model sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from onefold.search.optuna_study import REQUIRED, Axes, silent_study
from onefold.vocabulary.records import Config

Coded = Mapping[str, float]


@dataclass(eq=False)
class _Entry:
    """A result as the model takes it, or, without losses, a trial under way."""

    coded: Coded
    losses: Sequence[float] | None = None
    violation: float = 0.0


class Level:
    """An optuna study that grows by results, failures and what is under way; made anew when a result is corrected."""

    def __init__(self, goals: int, distributions: Mapping[str, BaseDistribution], enough: int) -> None:
        self._goals = goals
        self._distributions = distributions
        self._enough = enough
        self._entries: list[_Entry] = []  # in the order they came
        self._results: dict[int, _Entry] = {}  # those of trials, by number
        self._under_way: dict[int, _Entry] = {}
        self._worst = [-math.inf] * goals
        self._rejected: list[Coded] = []  # until it is known what a bad result is
        self._constrained = self._corrected = False
        self._begin()

    @property
    def ready(self) -> bool:
        """Whether there is enough to fit a model."""
        return len(self._results) >= self._enough

    def proposal(self, sampler: BaseSampler, axes: Axes, *, whole: bool) -> Config:
        """What the sampler would try next. The trial made for the question is thrown away."""
        if self._corrected:
            self._begin()
        self._study.sampler = sampler
        trial = self._study.ask()
        next(self._places)
        config = axes.suggested(trial, whole=whole)
        self._study.tell(trial, state=TrialState.FAIL)
        return config

    def learn(self, number: int, coded: Coded, losses: Sequence[float], violation: float) -> None:
        """Adds the result of trial `number`."""
        entry = self._results[number] = _Entry(coded, losses, violation)
        self._add(entry)
        self._worst = [max(pair) for pair in zip(self._worst, losses)]
        if self.ready:
            while self._rejected:
                self._add(_Entry(self._rejected.pop(0), self._worst))

    def correct(self, number: int, violation: float) -> bool:
        """Says anew how far a result misses the requirements; False when there is no result of trial `number` yet."""
        if number not in self._results:
            return False
        self._corrected = self._corrected or self._results[number].violation != violation
        self._results[number].violation = violation
        return True

    def reject(self, coded: Coded) -> None:
        """Adds a failure, as bad as the worst result."""
        if self.ready:
            self._add(_Entry(coded, self._worst))
        else:
            self._rejected.append(coded)

    def avoid(self, coded: Coded, number: int) -> None:
        """Keeps the model away from a place while trial `number` is under way."""
        entry = self._under_way[number] = _Entry(coded)
        self._entries.append(entry)
        self._avoided[number] = self._place(entry)

    def release(self, number: int) -> None:
        """The trial is no longer under way."""
        self._entries.remove(self._under_way.pop(number))
        self._study.tell(self._avoided.pop(number), state=TrialState.FAIL)

    def _begin(self) -> None:
        """Makes the study from all that is known, in the order it came."""
        self._study = silent_study(self._goals)
        self._places = count()
        self._corrected = False
        # A model takes constraints of all trials or of none, and those of none are fitted faster.
        self._constrained = any(entry.violation > 0 for entry in self._entries)
        places = [self._place(entry) for entry in self._entries]
        numbers = {id(entry): number for number, entry in self._under_way.items()}
        # Our number of a trial under way -> optuna's.
        self._avoided = {numbers[id(e)]: place for e, place in zip(self._entries, places) if id(e) in numbers}

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._corrected = self._corrected or (entry.violation > 0 and not self._constrained)
        self._place(entry)

    def _place(self, entry: _Entry) -> int:
        done = entry.losses is not None
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if done else TrialState.RUNNING,
                params=dict(entry.coded),
                distributions={name: self._distributions[name] for name in entry.coded},
                values=entry.losses,
                constraints={REQUIRED: entry.violation} if done and self._constrained else None,
            )
        )
        return next(self._places)
