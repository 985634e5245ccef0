"""The order in which a search learns results: that of their arrival if rungs took exactly as long as their work.

Real arrivals depend on timing; this order depends on the decisions alone. Were it the order of decisions, a long rung
would hold back the many short ones that are decided after it, and all but one worker would wait.
"""

from __future__ import annotations

from heapq import heappop, heappush


class ResultOrder:
    """The rungs whose results the search has not learned, ordered by their planned end on so many slots."""

    def __init__(self, slots: int) -> None:
        self._free = [0.0] * max(1, slots)  # when each slot is free; times have the unit of work
        self._pending: list[tuple[float, int]] = []  # planned end, decision
        self._now = 0.0  # the planned end of the latest result that was learned

    def __len__(self) -> int:
        """Return the number of results that the search has not learned."""
        return len(self._pending)

    def add(self, decision: int, work: float) -> None:
        """Plan the rung of a decision on the slot that is free first."""
        end = max(heappop(self._free), self._now) + work
        heappush(self._free, end)
        heappush(self._pending, (end, decision))

    @property
    def next(self) -> int | None:
        """Return the decision whose result comes next; None if none is pending."""
        return self._pending[0][1] if self._pending else None

    def learn_next(self) -> None:
        """Remove the result that comes next."""
        end, _ = heappop(self._pending)
        self._now = max(self._now, end)
