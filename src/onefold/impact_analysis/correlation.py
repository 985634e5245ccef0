"""Properties beside each other: whether one says what another will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from onefold.impact_analysis.sample_validation import Numbers, constant, measured, together
from onefold.vocabulary.errors import InputError, suggestion

Coefficient = Literal["pearson", "spearman"]
FEWEST = 3  # through two points there is always a straight line


@dataclass(frozen=True, slots=True)
class Correlation:
    """How two properties go together: along a line (Pearson) and in their order (Spearman), each with its p-value.

    None where a property is constant or fewer than FEWEST models are known.
    """

    one: str
    other: str
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None


@dataclass(frozen=True, slots=True)
class Correlations:
    """The correlations between properties of `n` models: each pair of them once, in the order of `names`."""

    names: tuple[str, ...]
    n: int
    pairs: tuple[Correlation, ...]
    constant: tuple[str, ...]  # the properties that have no correlation, since they are the same for all models

    def between(self, one: str, other: str) -> Correlation:
        """The correlation of two different properties, whichever is named first."""
        for name in (one, other):
            if name not in self.names:
                raise InputError(f"there is no property {name!r}{suggestion(name, self.names)}")
        found = next((pair for pair in self.pairs if {pair.one, pair.other} == {one, other}), None)
        if found is None:
            raise InputError(f"a correlation is between two properties, but got {one!r} twice")
        return found

    def matrix(self, coefficient: Coefficient = "spearman") -> tuple[tuple[float | None, ...], ...]:
        """The coefficients as a symmetric matrix, a row and a column for each name."""
        return tuple(tuple(self._cell(row, column, coefficient) for column in self.names) for row in self.names)

    def _cell(self, row: str, column: str, coefficient: Coefficient) -> float | None:
        if row == column:
            return None if row in self.constant or self.n < FEWEST else 1.0
        pair = self.between(row, column)
        return pair.pearson if coefficient == "pearson" else pair.spearman


def correlations(columns: Mapping[str, Sequence[float]]) -> Correlations:
    """How properties go together, two by two; each column holds one property, model by model.

    The p-values of Spearman's coefficient are an approximation that is rough below some twenty models.
    """
    known = {name: measured(values, f"the values of {name}") for name, values in columns.items()}
    pairs = tuple(_correlation(one, known[one], other, known[other]) for one, other in combinations(known, 2))
    n = len(next(iter(known.values()))) if known else 0
    return Correlations(tuple(known), n, pairs, tuple(name for name in known if constant(known[name])))


def _correlation(one: str, left: Numbers, other: str, right: Numbers) -> Correlation:
    from scipy.stats import pearsonr, spearmanr

    together(left, right, f"the values of {one} and {other}")
    if len(left) < FEWEST or constant(left) or constant(right):
        return Correlation(one, other, None, None, None, None)
    line, order = pearsonr(left, right), spearmanr(left, right)
    return Correlation(
        one, other, float(line.statistic), float(line.pvalue), float(order.statistic), float(order.pvalue)
    )
