"""The rules by which a variant is selected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold import Recipe
from onefold.compression.selection import SelectionCriteria, SelectionOptions, VariantCost, select_variant
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Energy
from onefold.vocabulary.requirement import at_least, at_most
from onefold.vocabulary.serving import LatencySource
from onefold.vocabulary.variants import Variant

RECIPES = (Recipe(precision="int8"), Recipe(sparsity=0.8, channels=0.5, precision="int8"))
ACCURACY = SelectionCriteria("accuracy", higher_is_better=True)


def variant(recipe: Recipe | None = None, **changes: object) -> Variant:
    plain = Variant(
        recipe or Recipe(), {"accuracy": 0.9}, 0.010, LatencySource.MEASURED, Energy(1.0, "modelled"), None, 1000,
        {"zstd": 800}, 1e6, 1e6, 100, 0.0,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def criteria(**options: object) -> SelectionCriteria:
    return replace(ACCURACY, options=SelectionOptions(**options))  # type: ignore[arg-type]


def test_a_slower_or_worse_variant_is_never_selected() -> None:
    slow = variant(Recipe(sparsity=0.5), latency_s=0.02, encoded_bytes={"zstd": 10})
    worse = variant(Recipe(sparsity=0.9), metrics={"accuracy": 0.8}, encoded_bytes={"zstd": 10})
    good = variant(Recipe(precision="int8"), encoded_bytes={"zstd": 400}, metrics={"accuracy": 0.895})
    selection = select_variant(variant(), [slow, worse, good], ACCURACY)
    assert selection.chosen is good
    assert selection.refused == {
        "50% sparsity": "2.00x the latency, more than the 1.02x allowed",
        "90% sparsity": "accuracy is worse by 0.1, more than the 0.01 allowed",
    }
    selection = select_variant(variant(), [slow, worse], ACCURACY)
    assert selection.chosen.recipe.is_plain
    assert "no variant is better for size" in str(selection)
    assert "50% sparsity: 2.00x the latency" in str(selection)


def test_a_variant_that_violates_a_requirement_is_refused() -> None:
    small = variant(Recipe(precision="int8"), encoded_bytes={"zstd": 100}, metrics={"accuracy": 0.893})
    large = variant(Recipe(precision="fp16"), encoded_bytes={"zstd": 400})
    bounds = {"accuracy": at_least("best-0.005")}
    selection = select_variant(variant(), [small, large], replace(ACCURACY, bounds=bounds))
    assert selection.chosen is large
    assert selection.refused == {"int8": "accuracy 0.893 violates accuracy>=best-0.005"}
    bounds = {"encoded_bytes": at_most(200)}
    selection = select_variant(variant(), [small, large], replace(ACCURACY, bounds=bounds))
    assert selection.chosen is small
    assert selection.is_feasible


def test_a_requirement_goes_before_the_latency_but_not_before_the_metric() -> None:
    small = variant(Recipe(precision="int8"), encoded_bytes={"zstd": 100}, latency_s=0.011)
    smaller = variant(Recipe(precision="int4"), encoded_bytes={"zstd": 50}, latency_s=0.014)
    worse = variant(Recipe(sparsity=0.9), encoded_bytes={"zstd": 10}, metrics={"accuracy": 0.8})
    bounds = {"encoded_bytes": at_most(200)}
    selection = select_variant(variant(), [smaller, small, worse], replace(ACCURACY, bounds=bounds))
    assert (selection.chosen, selection.is_feasible) == (small, True)
    assert selection.why.startswith(
        "int8: 1.10x the latency, more than the 1.02x allowed, but nothing faster meets encoded_bytes<=200 B; 8.0x"
    )
    assert selection.refused["plain"] == "encoded_bytes 800 B violates encoded_bytes<=200 B"
    met = {"encoded_bytes": at_most(800)}
    assert select_variant(variant(), [small], replace(ACCURACY, bounds=met)).chosen.recipe.is_plain


def test_a_requirement_that_nothing_meets_is_said() -> None:
    large = variant(Recipe(precision="fp16"), encoded_bytes={"zstd": 400})
    worse = variant(Recipe(sparsity=0.9), encoded_bytes={"zstd": 10}, metrics={"accuracy": 0.8})
    bounds = {"encoded_bytes": at_most(200)}
    selection = select_variant(variant(), [large, worse], replace(ACCURACY, bounds=bounds))
    assert (selection.chosen, selection.is_feasible) == (large, False)
    assert "nothing meets encoded_bytes<=200 B within the allowed loss of accuracy: encoded_bytes 400 B" in str(
        selection
    )
    selection = select_variant(variant(), [worse], replace(ACCURACY, bounds=bounds))
    assert selection.chosen.recipe.is_plain
    assert "nothing meets encoded_bytes<=200 B" in selection.why


def test_every_limit_that_is_violated_is_named() -> None:
    bad = variant(Recipe(precision="int8"), metrics={"accuracy": 0.85}, latency_s=0.014, encoded_bytes={"zstd": 300})
    bounds = {"accuracy": at_least(0.99), "encoded_bytes": at_most(200)}
    violations = (
        "accuracy is worse by 0.05, more than the 0.01 allowed, and 1.40x the latency, more than the 1.02x allowed, "
        "and accuracy 0.85 violates accuracy>=0.99, and encoded_bytes 300 B violates encoded_bytes<=200 B"
    )
    asked = replace(criteria(take="int8"), bounds=bounds)
    selection = select_variant(variant(), [bad], asked)
    assert selection.why.startswith(f"int8: as asked although {violations}; ")
    assert select_variant(variant(), [bad], replace(ACCURACY, bounds=bounds)).refused == {"int8": violations}
    plain = select_variant(variant(), [bad], replace(criteria(take="plain"), bounds={"accuracy": at_least(0.99)}))
    assert plain.why == "the plain model: as asked although accuracy 0.9 violates accuracy>=0.99"


def test_a_metric_that_is_not_a_number_is_refused() -> None:
    broken = variant(Recipe(precision="int8"), metrics={"accuracy": float("nan")}, encoded_bytes={"zstd": 1})
    selection = select_variant(variant(), [broken], ACCURACY)
    assert selection.refused == {"int8": "accuracy is not a number"}


def test_lower_is_better_for_losses() -> None:
    plain = variant(metrics={"rmse": 1.0})
    better = variant(Recipe(precision="fp16"), metrics={"rmse": 0.9}, encoded_bytes={"zstd": 1})
    worse = variant(Recipe(precision="int8"), metrics={"rmse": 1.1}, encoded_bytes={"zstd": 0})
    criteria = SelectionCriteria("rmse", higher_is_better=False, options=SelectionOptions(max_metric_loss=0.05))
    assert select_variant(plain, [better, worse], criteria).chosen is better


@pytest.mark.parametrize(("optimize_for", "recipe"), [("size", "small"), ("latency", "fast"), ("energy", "frugal")])
def test_the_cheapest_variant_is_selected(optimize_for: VariantCost, recipe: str) -> None:
    variants = [
        variant(Recipe.of({"kind": "small"}), encoded_bytes={"zstd": 10}),
        variant(Recipe.of({"kind": "fast"}), latency_s=0.001),
        variant(Recipe.of({"kind": "frugal"}), energy=Energy(0.1, "modelled")),
    ]
    selection = select_variant(variant(), variants, criteria(optimize_for=optimize_for))
    assert selection.chosen.recipe == Recipe.of({"kind": recipe})


def test_a_variant_may_be_slower_if_that_is_allowed() -> None:
    slower = variant(Recipe(precision="int8"), latency_s=0.0105, encoded_bytes={"zstd": 320})
    assert select_variant(variant(), [slower], ACCURACY).chosen.recipe.is_plain
    assert select_variant(variant(), [slower], criteria(allow_slower="10%")).chosen is slower
    selection = select_variant(variant(), [slower], criteria(allow_slower=0.1))
    assert selection.chosen is slower
    assert selection.why == "int8: 2.5x smaller, 0.95x as fast, accuracy 0.9 instead of 0.9"


def test_a_variant_that_is_asked_for_is_selected_whatever_it_costs() -> None:
    slow = variant(Recipe(precision="int8"), latency_s=0.02, encoded_bytes={"zstd": 400})
    small = variant(Recipe(precision="fp16"), encoded_bytes={"zstd": 10})
    selection = select_variant(variant(), [slow, small], criteria(take="int8"))
    assert selection.chosen is slow
    assert "as asked although 2.00x the latency, more than the 1.02x allowed; 2.0x smaller" in selection.why
    assert selection.refused == {}
    selection = select_variant(variant(), [small], criteria(take="plain"))
    assert (selection.chosen.recipe.is_plain, selection.why) == (True, "the plain model: as asked")
    selection = select_variant(variant(), [small], criteria(take="int8"))
    assert (selection.chosen.recipe.is_plain, selection.why) == (True, "the plain model: there is no variant 'int8'")


def test_of_several_trials_the_variant_within_the_limits_is_taken() -> None:
    slow = variant(Recipe(precision="int8"), latency_s=0.02, encoded_bytes={"zstd": 10})
    fast = variant(Recipe(precision="int8"), encoded_bytes={"zstd": 700})
    assert select_variant(variant(), [slow, fast], criteria(take="int8")).chosen is fast


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"take": "int9"}, "unknown variant 'int9'; did you mean 'int8'"),
        ({"take": "INT9"}, "unknown variant 'INT9'; did you mean 'int8'"),
        ({"take": ""}, "unknown variant ''; known: int8, plain, sparsity-0.8-channels-0.5-int8$"),
        ({"allow_slower": -0.1}, "allow_slower must be at least 0"),
        ({"allow_slower": "10"}, "expected a share such as 10% or 0.1, got '10'; write 10% or 1000%"),
        ({"allow_slower": True}, "expected a share such as 10% or 0.1, got True"),
        ({"max_metric_loss": float("nan")}, "max_metric_loss must be a number of at least 0"),
        ({"max_metric_loss": "1%"}, "max_metric_loss must be a number of at least 0, but got '1%'"),
        ({"optimize_for": "speed"}, "unknown optimize_for 'speed'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SelectionOptions(**options).check(RECIPES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "take",
    ["50% fewer channels, 80% sparsity, int8", "sparsity-0.8-channels-0.5-int8", "Sparsity-0.8-Channels-0.5-INT8"],
)
def test_a_variant_is_taken_by_any_of_its_names(take: str) -> None:
    pruned = variant(RECIPES[1])
    SelectionOptions(take=take).check(RECIPES)
    assert select_variant(variant(), [variant(RECIPES[0]), pruned], criteria(take=take)).chosen is pruned
