"""Requirements: bounds on metrics, absolute or relative to the best result.

accuracy>=0.9            at_least(0.9)
latency_s<=0.03          at_most(0.03)            also latency_s<=30ms
encoded_bytes<=2MB       at_most(2e6)
accuracy>=best-0.01      at_least("best-0.01")    at most 0.01 below the best result
accuracy>=best-5%        at_least("best-5%")      at most 5 % of the best result below it
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from onefold.vocabulary.errors import InputError, ObjectiveError, suggestion
from onefold.vocabulary.expression import names
from onefold.vocabulary.quantities import parse_bytes, parse_seconds

_EXAMPLES = "accuracy>=0.9, latency_s<=0.03, accuracy>=best-0.01 or accuracy>=best-5%"
_UNITS: Mapping[str, Callable[[str], float]] = {"_bytes": parse_bytes, "_s": parse_seconds}
_MEASURED = ("latency_s", "latency_p99_s", "train_time_s", "size_bytes", "encoded_bytes", "serving_memory_bytes")
_FROM_BEST = re.compile(r"\s*best\s*(?:([-+])\s*([.\deE]+|[.\d]+[eE]-\d+)\s*(%)?)?\s*")


@dataclass(frozen=True)
class Bound:
    """A limit on a metric.

    With `from_best` the limit is the best value of the metric among the compared results plus `from_best`, which is
    relative to that value if `is_share`. It is open until they are known (`settled`); until then every result meets it.
    """

    limit: float | None = None
    at_least: bool = True
    from_best: float | None = None
    is_share: bool = False

    def __post_init__(self) -> None:
        if self.from_best is not None and (self.from_best > 0 if self.at_least else self.from_best < 0):
            raise ObjectiveError(f"no result can be better than the best: {self} can never be met; reverse its sign")
        if self.is_share and self.at_least and self.from_best is not None and self.from_best <= -1:
            raise ObjectiveError(
                f"a share of the best must be below 100%, got {self}; write best-5%, or best-5 for an absolute distance"
            )

    @property
    def is_open(self) -> bool:
        """Return whether the limit depends on a best result that is not known yet."""
        return self.limit is None

    def settled(self, values: Iterable[float]) -> Bound:
        """Return the bound with its limit fixed by the best of these values."""
        finite = [value for value in values if math.isfinite(value)]
        if not self.is_open or self.from_best is None or not finite:
            return self
        best = max(finite) if self.at_least else min(finite)
        return replace(self, limit=best + self.from_best * (abs(best) if self.is_share else 1.0))

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
            share = {"is_share": True} if self.is_share else {}
            return {"at_least": self.at_least, "from_best": float(self.from_best), **share}
        return {"at_least": self.at_least, "limit": self.limit}

    def __str__(self) -> str:
        if self.from_best is None:
            limit = f"{self.limit:g}"
        else:
            limit = (
                "best" if not self.from_best else f"best{self.from_best * 100 if self.is_share else self.from_best:+g}"
            )
            limit += "%" if self.is_share and self.from_best else ""
        return f"{'>=' if self.at_least else '<='}{limit}"


def at_least(limit: float | str) -> Bound:
    """Require a metric of at least `limit`; "best-0.01" and "best-5%" are relative to the best result."""
    return _bound(limit, at_least=True)


def at_most(limit: float | str) -> Bound:
    """Require a metric of at most `limit`; "best+0.01" and "best+5%" are relative to the best result."""
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
    return match[1], _bound(_without_unit(match[1], match[3]), at_least=match[2] == ">=")


def check_fraction(metric: str, bound: Bound) -> None:
    """Raise ObjectiveError for a bound on a metric from 0 to 1 that every result meets, or none."""
    sign, limit = ">=" if bound.at_least else "<=", bound.limit
    if bound.from_best is not None and not bound.is_share and abs(bound.from_best) >= 1:
        share = f"{metric}{sign}best{bound.from_best:+g}%"
        raise ObjectiveError(
            f"every result meets {metric}{bound}, since {metric} is between 0 and 1; write {share} for a share of the "
            "best"
        )
    if bound.from_best is None and limit is not None and bound.at_least and limit > 1:
        raise ObjectiveError(
            f"no result can meet {metric}{bound}, since {metric} is between 0 and 1; "
            + (f"write {metric}>={limit / 100:g} for {limit:g} %" if 10 <= limit <= 100 else "lower the bound")
        )


def _without_unit(metric: str, limit: str) -> str:
    """Return a limit in the unit that the name of its metric says: "200000" for "200kB", 0.002 for "2ms"."""
    name = metric.partition("@")[0]  # without the device
    has_unit = name.isidentifier() and not name.endswith("_per_s")
    parse = next((parse for suffix, parse in _UNITS.items() if has_unit and name.endswith(suffix)), None)
    if parse is None:
        if has_unit and (unit := _unit_of(limit)) is not None:
            like = [each for each in _MEASURED if each.endswith(unit)]
            raise ObjectiveError(
                f"the limit {limit!r} has a unit, and the name of the metric {name!r} says none{suggestion(name, like)}"
            )
        return limit
    try:
        return repr(parse(limit))
    except InputError:
        return limit


def _unit_of(limit: str) -> str | None:
    """Return the suffix of the metrics whose unit a limit has; None if it has no unit."""
    if not limit.strip()[-1:].isalpha() or _FROM_BEST.fullmatch(limit):
        return None
    for suffix, parse in _UNITS.items():
        with suppress(InputError):
            parse(limit)
            return suffix
    return None


def _bound(limit: float | str, *, at_least: bool) -> Bound:
    if not isinstance(limit, str):
        return Bound(float(limit), at_least)
    try:
        if match := _FROM_BEST.fullmatch(limit):
            offset = float(f"{match[1] or '+'}{match[2] or 0}")
            return Bound(at_least=at_least, from_best=offset / 100 if match[3] else offset, is_share=bool(match[3]))
        if math.isnan(float(limit)):
            raise ValueError
        return Bound(float(limit), at_least)
    except ValueError:
        raise ObjectiveError(f"{limit!r} is not the limit of a requirement; write, for example, {_EXAMPLES}") from None
