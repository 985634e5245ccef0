"""Decide how many of the cores that the study lends a trial uses: those that make its steps cheaper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onefold.training.knob_search import MIN_GAIN

COSTLY_WINDOWS = 2  # consecutive windows that cost as much as on the trial's own cores end the use of lent ones
RETRY_WINDOWS, MAX_RETRY_WINDOWS = 8, 64  # on own cores before lent ones are tried again


class CoreLoan:
    """Plans the number of lent cores of each window, and learns what it cost.

    Args:
        lent: Returns the cores that are lent now.
    """

    def __init__(self, lent: Callable[[], Sequence[int]]) -> None:
        self._lent = lent
        self.in_use = 0  # lent cores that have proved cheaper
        self._offer = 0  # cores that were lent when the candidates were chosen
        self._candidates: list[int] = []  # numbers of cores to try
        self._own_cost = 0.0  # of a step on the trial's own cores
        self._lowest = 0.0
        self._costly = 0  # windows
        self._wait, self._interval = 0, RETRY_WINDOWS

    @property
    def is_probing(self) -> bool:
        """Return whether the next window tries lent cores."""
        return bool(self._candidates)

    def plan(self, own_cost: float) -> int:
        """Return the lent cores of the next window; `own_cost` is the latest cost of a step without them."""
        if len(self._lent()) != self._offer:
            self._interval = RETRY_WINDOWS
            self._restart(own_cost)
        return self._candidates[0] if self._candidates else self.in_use

    def observe(self, cores: int, cost: float) -> str:
        """Learn the cost of a step with so many lent cores; return what was decided, or an empty text."""
        if self._candidates:
            return self._learn(cost) if cores == self._candidates[0] else ""
        if not cores:
            self._wait -= 1
            if self._offer and not self._wait:
                self._restart(cost)
            return ""
        self._costly = self._costly + 1 if cost >= self._own_cost else 0
        if self._costly < COSTLY_WINDOWS:
            return ""
        self._return()
        return f"lent {_cores(cores)}, with which steps cost no less any more: not used"

    def reset(self) -> None:
        """Forget the costs, since the other knobs have changed."""
        self._offer = self.in_use = 0
        self._candidates = []

    def _restart(self, own_cost: float) -> None:
        self._offer, self.in_use, self._costly = len(self._lent()), 0, 0
        self._own_cost = self._lowest = own_cost
        self._candidates = [self._offer >> i for i in range(self._offer.bit_length())]

    def _learn(self, cost: float) -> str:
        cores = self._candidates.pop(0)
        if cost < self._lowest * (1 - MIN_GAIN):
            self.in_use, self._lowest = cores, cost
        if self._candidates:
            return ""
        if not self.in_use:
            self._return()
            return f"lent {_cores(self._offer)}, with which steps cost no less: not used"
        return f"lent {_cores(self.in_use)}, with which a step costs {self._lowest / self._own_cost:.2g}x as much: used"

    def _return(self) -> None:
        self.in_use, self._costly = 0, 0
        self._wait, self._interval = self._interval, min(MAX_RETRY_WINDOWS, 2 * self._interval)


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
