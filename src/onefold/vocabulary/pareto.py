"""Pareto dominance: non-dominated fronts, computed at once or kept up to date, and crowding inside a front.

Smaller is better in every goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import le, lt


def dominates(first: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `first` Pareto-dominates `other`: nowhere worse and somewhere better."""
    return all(map(le, first, other)) and any(map(lt, first, other))


def fronts(losses: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return the positions of `losses` by non-dominated front, best front first."""
    layers: list[list[int]] = []
    # In lexicographic order no point is dominated by a later one. NaN has no order, and dominates nothing.
    unordered = [i for i, point in enumerate(losses) if any(map(math.isnan, point))]
    ordered = sorted(set(range(len(losses))).difference(unordered), key=lambda i: (*losses[i], i))
    for i in ordered:
        depth = _first_depth(len(layers), partial(_is_dominated_at, losses[i], losses, layers))
        if depth == len(layers):
            layers.append([])
        layers[depth].append(i)
    if unordered:
        layers[:1] = [[*(layers[0] if layers else []), *unordered]]
    return [sorted(layer) for layer in layers]


def _is_dominated_at(
    point: Sequence[float], losses: Sequence[Sequence[float]], layers: Sequence[Sequence[int]], depth: int
) -> bool:
    return any(dominates(losses[i], point) for i in reversed(layers[depth]))


def crowding(front: Sequence[Sequence[float]]) -> list[float]:
    """Return the crowding distance of each member of a front (NSGA-II); infinite at the ends."""
    distance = [0.0] * len(front)
    for goal in range(len(front[0]) if front else 0):
        by_loss = sorted(range(len(front)), key=lambda i: (front[i][goal], i))
        span = front[by_loss[-1]][goal] - front[by_loss[0]][goal]
        distance[by_loss[0]] = distance[by_loss[-1]] = math.inf
        for before, here, after in zip(by_loss, by_loss[1:], by_loss[2:]):
            if span > 0:
                distance[here] += (front[after][goal] - front[before][goal]) / span
    return distance


class Fronts:
    """Points in non-dominated fronts, best front first, kept up to date as points are added and removed.

    Equal to `fronts` over the same points; a change compares the point with those of a few fronts only.
    """

    def __init__(self) -> None:
        self._fronts: list[dict[int, Sequence[float]]] = []
        self._points: dict[int, Sequence[float]] = {}

    def __iter__(self) -> Iterator[Mapping[int, Sequence[float]]]:
        return iter(self._fronts)

    def add(self, key: int, losses: Sequence[float]) -> None:
        """Add the point `key`, which must be new."""
        self._points[key] = losses
        depth = self._depth(losses)
        arriving: dict[int, Sequence[float]] = {key: losses}
        while arriving:
            if depth == len(self._fronts):
                self._fronts.append({})
            front = self._fronts[depth]
            sinking = {k: point for k, point in front.items() if any(dominates(p, point) for p in arriving.values())}
            for k in sinking:
                del front[k]
            front.update(arriving)
            arriving, depth = sinking, depth + 1

    def remove(self, key: int) -> None:
        """Remove the point `key`."""
        # A point can only be in the first front that has none to dominate it.
        depth = self._depth(self._points[key])
        leaving = {key: self._points.pop(key)}
        del self._fronts[depth][key]
        while leaving and depth + 1 < len(self._fronts):
            front, below = self._fronts[depth], self._fronts[depth + 1]
            rising = {
                k: point
                for k, point in below.items()
                if any(dominates(p, point) for p in leaving.values())
                and not any(dominates(p, point) for p in front.values())
            }
            for k in rising:
                del below[k]
            front.update(rising)
            leaving, depth = rising, depth + 1
        if not self._fronts[-1]:
            self._fronts.pop()

    def _depth(self, losses: Sequence[float]) -> int:
        return _first_depth(
            len(self._fronts), lambda at: any(dominates(point, losses) for point in self._fronts[at].values())
        )


def _first_depth(count: int, is_dominated_at: Callable[[int], bool]) -> int:
    """Return the first of `count` fronts that does not dominate a point: all before do, and none after."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if is_dominated_at(middle):
            low = middle + 1
        else:
            high = middle
    return low
