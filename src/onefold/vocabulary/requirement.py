"""Requirements: bounds on metrics, absolute or relative to the best result.

accuracy>=0.9            at_least(0.9)
latency_s<=0.03          at_most(0.03)
accuracy>=best-0.01      at_least("best-0.01")    at most 0.01 below the best result
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.expression import names

_EXAMPLES = "accuracy>=0.9, latency_s<=0.03 or accuracy>=best-0.01"
_FROM_BEST = re.compile(r"\s*best\s*(?:([-+])\s*([.\deE]+|[.\d]+[eE]-\d+))?\s*")


@dataclass(frozen=True)
class Bound:
    """A limit on a metric.

    With `from_best` the limit is the best value of the metric among the compared results plus `from_best`. It is open
    until they are known (`settled`); until then every result meets it.
    """

    limit: float | None = None
    at_least: bool = True
    from_best: float | None = None

    def __post_init__(self) -> None:
        if self.from_best is not None and (self.from_best > 0 if self.at_least else self.from_best < 0):
            raise ObjectiveError(f"no result can be better than the best: {self} can never be met; reverse its sign")

    @property
    def is_open(self) -> bool:
        """Return whether the limit depends on a best result that is not known yet."""
        return self.limit is None

    def settled(self, values: Iterable[float]) -> Bound:
        """Return the bound with its limit fixed by the best of these values."""
        finite = [value for value in values if math.isfinite(value)]
        if not self.is_open or self.from_best is None or not finite:
            return self
        return replace(self, limit=(max(finite) if self.at_least else min(finite)) + self.from_best)

    def violation(self, value: float) -> float:
        """Return how far `value` violates the bound, relative to the limit; 0 if it is met."""
        margin = self.margin(value)
        return max(0.0, -margin) if not math.isnan(margin) else math.inf

    def margin(self, value: float) -> float:
        """Return the margin of `value` to the limit, relative to the limit; negative if the bound is violated."""
        if self.limit is None:
            return 0.0 if math.isfinite(value) else math.nan
        return (value - self.limit if self.at_least else self.limit - value) / (abs(self.limit) or 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the bound as plain JSON values; one relative to the best is written open."""
        if self.from_best is not None:
            return {"at_least": self.at_least, "from_best": float(self.from_best)}
        return {"at_least": self.at_least, "limit": self.limit}

    def __str__(self) -> str:
        limit = (
            f"{self.limit:g}" if self.from_best is None else f"best{self.from_best:+g}" if self.from_best else "best"
        )
        return f"{'>=' if self.at_least else '<='}{limit}"


def at_least(limit: float | str) -> Bound:
    """Require a metric of at least `limit`; "best-0.01" is relative to the best result."""
    return _bound(limit, at_least=True)


def at_most(limit: float | str) -> Bound:
    """Require a metric of at most `limit`; "best+0.01" is relative to the best result."""
    return _bound(limit, at_least=False)


def requirement(text: str) -> tuple[str, Bound]:
    """Parse "accuracy>=0.9", "latency_s<=0.03", "accuracy>=best-0.01" or a bound on an expression."""
    match = re.fullmatch(r"\s*([^<>=]+?)\s*(>=|<=)\s*([^<>=]+)", text)
    try:
        known = bool(match and names(match[1]))
    except ObjectiveError:
        known = False
    if match is None or not known:
        raise ObjectiveError(f"{text!r} is not a requirement; write, for example, {_EXAMPLES}")
    return match[1], _bound(match[3], at_least=match[2] == ">=")


def _bound(limit: float | str, *, at_least: bool) -> Bound:
    if not isinstance(limit, str):
        return Bound(float(limit), at_least)
    try:
        if match := _FROM_BEST.fullmatch(limit):
            return Bound(at_least=at_least, from_best=float(f"{match[1] or '+'}{match[2] or 0}"))
        if math.isnan(float(limit)):
            raise ValueError
        return Bound(float(limit), at_least)
    except ValueError:
        raise ObjectiveError(f"{limit!r} is not the limit of a requirement; write, for example, {_EXAMPLES}") from None
