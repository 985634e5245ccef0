"""The rules by which a variant is selected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold import Recipe
from onefold.compression.selection import SelectionCriteria, VariantCost, select_variant
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource
from onefold.vocabulary.variants import Variant

ACCURACY = SelectionCriteria("accuracy", higher_is_better=True)


def variant(recipe: Recipe | None = None, **changes: object) -> Variant:
    plain = Variant(
        recipe or Recipe(), {"accuracy": 0.9}, 0.010, LatencySource.MEASURED, Energy(1.0, "modelled"), None, 1000,
        {"zstd": 800}, 1e6, 1e6, 100, 0.0,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_slower_or_worse_variant_is_never_selected() -> None:
    slow = variant(Recipe(sparsity=0.5), latency_s=0.02, encoded_bytes={"zstd": 10})
    worse = variant(Recipe(sparsity=0.9), metrics={"accuracy": 0.8}, encoded_bytes={"zstd": 10})
    good = variant(Recipe(precision="int8"), encoded_bytes={"zstd": 400}, metrics={"accuracy": 0.895})
    selection = select_variant(variant(), [slow, worse, good], ACCURACY)
    assert selection.chosen is good
    assert selection.refused == {
        "50% sparsity": "2.00x the latency",
        "90% sparsity": "accuracy is worse by 0.1, more than the 0.01 allowed",
    }
    selection = select_variant(variant(), [slow, worse], ACCURACY)
    assert selection.chosen.recipe.is_plain
    assert "no variant is better for size" in str(selection)
    assert "50% sparsity: 2.00x the latency" in str(selection)


def test_a_metric_that_is_not_a_number_is_refused() -> None:
    broken = variant(Recipe(precision="int8"), metrics={"accuracy": float("nan")}, encoded_bytes={"zstd": 1})
    selection = select_variant(variant(), [broken], ACCURACY)
    assert selection.refused == {"int8": "accuracy is not a number"}


def test_lower_is_better_for_losses() -> None:
    plain = variant(metrics={"rmse": 1.0})
    better = variant(Recipe(precision="fp16"), metrics={"rmse": 0.9}, encoded_bytes={"zstd": 1})
    worse = variant(Recipe(precision="int8"), metrics={"rmse": 1.1}, encoded_bytes={"zstd": 0})
    criteria = SelectionCriteria("rmse", higher_is_better=False, max_metric_loss=0.05)
    assert select_variant(plain, [better, worse], criteria).chosen is better


@pytest.mark.parametrize(("optimize_for", "recipe"), [("size", "small"), ("latency", "fast"), ("energy", "frugal")])
def test_the_cheapest_variant_is_selected(optimize_for: VariantCost, recipe: str) -> None:
    variants = [
        variant(Recipe.of({"kind": "small"}), encoded_bytes={"zstd": 10}),
        variant(Recipe.of({"kind": "fast"}), latency_s=0.001),
        variant(Recipe.of({"kind": "frugal"}), energy=Energy(0.1, "modelled")),
    ]
    selection = select_variant(variant(), variants, replace(ACCURACY, optimize_for=optimize_for))
    assert selection.chosen.recipe == Recipe.of({"kind": recipe})
