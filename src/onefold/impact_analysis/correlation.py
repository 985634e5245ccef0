"""Pearson and Spearman correlations between properties of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from onefold.impact_analysis.sample_validation import FloatArray, check_same_length, checked_sample, is_constant
from onefold.vocabulary.errors import InputError, unknown

Coefficient = Literal["pearson", "spearman"]
MIN_MODELS = 3  # two points always lie on a line


@dataclass(frozen=True, slots=True)
class Correlation:
    """Linear (Pearson) and rank (Spearman) correlation of two properties, each with its p-value.

    None if a property is constant or fewer than MIN_MODELS models are known.
    """

    one: str
    other: str
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None


@dataclass(frozen=True, slots=True)
class Correlations:
    """The correlations between all pairs of properties of `n` models, in the order of `names`."""

    names: tuple[str, ...]
    n: int
    pairs: tuple[Correlation, ...]
    constant: tuple[str, ...]  # properties without correlations, since they are the same for all models

    def between(self, one: str, other: str) -> Correlation:
        """Return the correlation of two different properties, in either order."""
        for name in (one, other):
            if name not in self.names:
                raise InputError(unknown("property", name, self.names))
        match = next((pair for pair in self.pairs if {pair.one, pair.other} == {one, other}), None)
        if match is None:
            raise InputError(f"a correlation needs two different properties, but got {one!r} twice")
        return match

    def matrix(self, coefficient: Coefficient = "spearman") -> tuple[tuple[float | None, ...], ...]:
        """Return the coefficients as a symmetric matrix, in the order of `names`."""
        return tuple(tuple(self._cell(row, column, coefficient) for column in self.names) for row in self.names)

    def _cell(self, row: str, column: str, coefficient: Coefficient) -> float | None:
        if row == column:
            return None if row in self.constant or self.n < MIN_MODELS else 1.0
        pair = self.between(row, column)
        return pair.pearson if coefficient == "pearson" else pair.spearman


def correlations(columns: Mapping[str, Sequence[float]]) -> Correlations:
    """Return the correlations between properties; each column holds one property, model by model.

    The p-values of Spearman's coefficient are asymptotic and rough below about twenty models.
    """
    checked = {name: checked_sample(values, f"the values of {name}") for name, values in columns.items()}
    pairs = tuple(
        _correlation(first, checked[first], other, checked[other]) for first, other in combinations(checked, 2)
    )
    n = len(next(iter(checked.values()))) if checked else 0
    return Correlations(tuple(checked), n, pairs, tuple(name for name in checked if is_constant(checked[name])))


def _correlation(one: str, left: FloatArray, other: str, right: FloatArray) -> Correlation:
    from scipy.stats import pearsonr, spearmanr

    check_same_length(left, right, f"the values of {one} and {other}")
    if len(left) < MIN_MODELS or is_constant(left) or is_constant(right):
        return Correlation(one, other, None, None, None, None)
    linear, rank = pearsonr(left, right), spearmanr(left, right)
    return Correlation(
        one, other, float(linear.statistic), float(linear.pvalue), float(rank.statistic), float(rank.pvalue)
    )
