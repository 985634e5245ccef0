"""Results in the order of an objective, kept sorted while results arrive: thousands of results cost little each.

The order is that of `Objective.order` or, for the best, of `Objective.order_of_preference` within classes: results that
meet the requirements come first, sound ones before those of failed trials, higher levels before lower ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from onefold.vocabulary.objective import Objective
from onefold.vocabulary.pareto import Fronts
from onefold.vocabulary.records import Metrics


class SettledObjective:
    """An objective whose bounds relative to the best follow the results as they come and go."""

    def __init__(self, objective: Objective) -> None:
        self._open = objective
        self._values: dict[str, list[float]] = {
            metric: [] for metric, bound in objective.require.items() if bound.is_open
        }
        self.current = objective

    def add(self, metrics: Metrics) -> bool:
        """Add a result; return whether a bound changed."""
        for values, value in self._affected(metrics):
            insort(values, value)
        return self._settle()

    def remove(self, metrics: Metrics) -> bool:
        """Remove a result that was added; return whether a bound changed."""
        for values, value in self._affected(metrics):
            del values[bisect_left(values, value)]
        return self._settle()

    def _affected(self, metrics: Metrics) -> Iterator[tuple[list[float], float]]:
        for metric, values in self._values.items():
            if metric in metrics and math.isfinite(metrics[metric]):
                yield values, metrics[metric]

    def _settle(self) -> bool:
        if not self._values:
            return False
        extremes = [{metric: values[at]} for metric, values in self._values.items() if values for at in (0, -1)]
        before, self.current = self.current, self._open.settled(extremes)
        return self.current.require != before.require


@dataclass(frozen=True, slots=True)
class _StandingKey:
    metrics: Metrics
    is_failed: bool
    level: int


class Standings(ABC):
    """The results that were put in, by number, best first. Equal results are in the order of their numbers."""

    def __init__(self, objective: Objective) -> None:
        self._settled = SettledObjective(objective)
        self._entries: dict[int, _StandingKey] = {}
        self._retired: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, number: int, metrics: Metrics, *, is_failed: bool = False, level: int = 0) -> None:
        """Add a result, or replace the one of that number."""
        self.remove(number)
        entry = self._entries[number] = _StandingKey(metrics, is_failed, level)
        if self._settled.add(metrics):
            self._rebuild()
        else:
            self._insert(number, entry)

    def remove(self, number: int) -> None:
        """Remove the result of that number, if there is one."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        self._delete(number)
        if self._settled.remove(entry.metrics):
            self._rebuild()

    def retire(self, number: int) -> None:
        """Keep the rank of a result, but let `candidate` skip it."""
        self._retired.add(number)

    @abstractmethod
    def best(self) -> int | None:
        """Return the number of the best result; None if there is none."""

    @abstractmethod
    def candidate(self, places: int) -> int | None:
        """Return the best result that is not retired, if it is among the best `places`."""

    def _rebuild(self) -> None:
        """Order all results again, since a bound changed."""
        self._clear()
        for number, entry in self._entries.items():
            self._insert(number, entry)

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _insert(self, number: int, entry: _StandingKey) -> None: ...

    @abstractmethod
    def _delete(self, number: int) -> None: ...


class SingleGoalStandings(Standings):
    """A sorted list: by class, violation, loss and margin."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective)
        self._clear()

    def best(self) -> int | None:
        return int(self._order[0][-1]) if self._order else None

    def candidate(self, places: int) -> int | None:
        if not self._active or bisect_left(self._order, self._active[0]) >= places:
            return None
        return int(self._active[0][-1])

    def retire(self, number: int) -> None:
        super().retire(number)
        _discard(self._active, self._keys[number])

    def _clear(self) -> None:
        self._keys: dict[int, tuple[float, ...]] = {}
        self._order: list[tuple[float, ...]] = []
        self._active: list[tuple[float, ...]] = []  # those that are not retired

    def _insert(self, number: int, entry: _StandingKey) -> None:
        objective = self._settled.current
        violation, (loss,) = objective.violation(entry.metrics), objective.losses(entry.metrics)
        is_infeasible = violation > 0
        level = 0 if is_infeasible else -entry.level
        key = (is_infeasible, entry.is_failed, level, violation, loss, -objective.margin(entry.metrics), number)
        self._keys[number] = key
        insort(self._order, key)
        if number not in self._retired:
            insort(self._active, key)

    def _delete(self, number: int) -> None:
        key = self._keys.pop(number)
        _discard(self._order, key)
        if number not in self._retired:
            _discard(self._active, key)


class ParetoStandings(Standings):
    """Non-dominated fronts of the feasible results of each class; then the infeasible ones."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective)
        self._clear()

    def best(self) -> int | None:
        if not self._classes:
            return int(self._infeasible[0][-1]) if self._infeasible else None
        numbers, results = self._members(next(iter(self._classes[min(self._classes)])))
        choice = self._settled.current.front_choice(results)
        return min(zip(numbers, results), key=lambda member: (*choice.key(member[1]), member[0]))[0]

    def candidate(self, places: int) -> int | None:
        before = 0
        for _, fronts in sorted(self._classes.items()):
            for front in fronts:
                if before >= places:
                    return None
                if not front.keys() <= self._retired:
                    numbers, results = self._members(front)
                    order = islice(self._settled.current.order_of_front(results), places - before)
                    return next((numbers[at] for at in order if numbers[at] not in self._retired), None)
                before += len(front)
        rest = islice(self._infeasible, max(0, places - before))
        return next((int(key[-1]) for key in rest if key[-1] not in self._retired), None)

    def _members(self, front: Iterable[int]) -> tuple[list[int], list[Metrics]]:
        numbers = sorted(front)
        return numbers, [self._entries[number].metrics for number in numbers]

    def _clear(self) -> None:
        self._classes: dict[tuple[bool, int], Fronts] = {}
        self._places: dict[int, tuple[bool, int]] = {}  # the class of each feasible result
        self._infeasible: list[tuple[float, ...]] = []

    def _insert(self, number: int, entry: _StandingKey) -> None:
        objective = self._settled.current
        violation = objective.violation(entry.metrics)
        if violation > 0:
            insort(self._infeasible, (entry.is_failed, violation, number))
        else:
            place = self._places[number] = (entry.is_failed, -entry.level)
            self._classes.setdefault(place, Fronts()).add(number, objective.losses(entry.metrics))

    def _delete(self, number: int) -> None:
        place = self._places.pop(number, None)
        if place is None:
            self._infeasible = [key for key in self._infeasible if key[-1] != number]
            return
        self._classes[place].remove(number)
        if not any(self._classes[place]):
            del self._classes[place]


def standings(objective: Objective) -> Standings:
    """Return empty standings for the goals of an objective."""
    return SingleGoalStandings(objective) if len(objective.goals) == 1 else ParetoStandings(objective)


def _discard(order: list[tuple[float, ...]], key: tuple[float, ...]) -> None:
    at = bisect_left(order, key)
    if at == len(order) or order[at] is not key:
        at = next((i for i, other in enumerate(order) if other is key), len(order))  # NaN has no order
    del order[at : at + 1]
