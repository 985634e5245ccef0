"""Pareto dominance: non-dominated fronts, computed at once or kept up to date, and the knee of a front.

Smaller is better in every goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import le, lt

REFERENCE = 1.1  # of the hypervolume, where 0 is the best value on a front and 1 the worst
LEAST_RATIO, LEAST_SHARE = 2.0, 0.05  # of the best value: what counts 1 at a knee, if the front spans less


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


def spread(front: Sequence[Sequence[float]], first: int | None = None) -> Iterator[int]:
    """Yield the positions of the members of a front: `first` (default: the knee), then by hypervolume contribution.

    The contribution of a member is the volume that it dominates and the most similar earlier one does not. The volume
    ends a little above the worst of the front in every goal, so that a member which is good at one goal and bad at all
    others contributes little.
    """
    scales = _scales(front)
    room = [[REFERENCE - min(1.0, scale(loss)) for scale, loss in zip(scales, losses)] for losses in front]
    volume = [math.prod(sides) for sides in room]
    contribution, left = list(volume), set(range(len(front)))
    if first is None and left:
        distance = KneeDistance(front, [1.0] * len(scales))
        first = min(left, key=lambda i: (distance(front[i]), i))
    while left:
        chosen = max(left, key=lambda i: (contribution[i], -i)) if first is None else first
        first = None
        yield chosen
        left.discard(chosen)
        for i in left:
            shared = math.prod(map(min, room[i], room[chosen]))
            contribution[i] = min(contribution[i], volume[i] - shared)


class KneeDistance:
    """The distance of a point from the best value of every goal among the points of a front: least at the knee.

    Each goal counts from 0, its best value on the front, to 1 times its weight, at its limit if it has one and else at
    the worst value on the front. Goals whose losses are all positive, such as costs, are compared by ratio. Since a
    front of few points may span next to nothing, what counts 1 is at least LEAST_RATIO times the best value, or
    LEAST_SHARE of it away.
    """

    def __init__(
        self,
        front: Sequence[Sequence[float]],
        weights: Sequence[float],
        limits: Sequence[float | None] | None = None,
    ) -> None:
        columns = zip(zip(*front), limits or [None] * len(weights))
        self._scales = [_LossScale.of(_finite(column)).widened(limit) for column, limit in columns]
        self._weights = weights

    def __call__(self, losses: Sequence[float]) -> tuple[float, float]:
        """Return the distance, and that with equal weights, which decides between points of the same distance."""
        shares = [scale(loss) for scale, loss in zip(self._scales, losses)]
        return math.hypot(*(weight * share for weight, share in zip(self._weights, shares))), math.hypot(*shares)


@dataclass(frozen=True, slots=True)
class _LossScale:
    """Maps the losses of one goal to 0 (the best of a front) to 1 (its worst)."""

    best: float
    span: float
    by_ratio: bool

    @classmethod
    def of(cls, losses: Sequence[float]) -> _LossScale:
        best, worst = min(losses, default=0.0), max(losses, default=0.0)
        if best > 0:
            return cls(math.log(best), math.log(worst) - math.log(best), by_ratio=True)
        return cls(best, worst - best, by_ratio=False)

    def widened(self, limit: float | None) -> _LossScale:
        """Return the scale that ends at a limit worse than the best value; without one, at no less than it should."""
        span = 0.0 if limit is None else self._position(limit) - self.best
        least = math.log(LEAST_RATIO) if self.by_ratio else LEAST_SHARE * abs(self.best)
        return replace(self, span=span if span > 0 else max(self.span, least))

    def __call__(self, loss: float) -> float:
        if math.isnan(loss):
            return math.inf
        return max(0.0, (self._position(loss) - self.best) / (self.span or 1.0))

    def _position(self, loss: float) -> float:
        if not self.by_ratio:
            return loss
        return math.log(loss) if loss > 0 else -math.inf


def _scales(front: Sequence[Sequence[float]]) -> list[_LossScale]:
    return [_LossScale.of(_finite(column)) for column in zip(*front)]


def _finite(column: Sequence[float]) -> list[float]:
    return [loss for loss in column if math.isfinite(loss)]


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
