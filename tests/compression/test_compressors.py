"""The contract of every registered compression method, and a method that another package adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from onefold.compression import registry
from onefold.compression.compressor import Compressor, FineTuning
from onefold.compression.forks import split_recipes
from onefold.compression.registry import CompressionMethod, active_methods, check_recipe, methods, register
from onefold.testing.compressors import CompressorContract, FewSteps, small_network
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.forks import ForkOptions
from onefold.vocabulary.records import Value, from_json, to_json
from onefold.vocabulary.variants import Recipe


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
class TestRegisteredMethods(CompressorContract):
    """Pruning, channel pruning and quantization."""


class LowRank(Compressor):
    """Truncate the singular values of every matrix; the setting is the share to drop."""

    def compress(self, network: torch.nn.Module, value: Value, fine_tuning: FineTuning) -> None:
        fine_tuning.run(network, learning_rate_factor=0.1)
        for weight in network.parameters():
            if weight.ndim == 2:
                u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
                s[round(len(s) * (1 - float(value or 0))) :] = 0
                weight.data = u @ torch.diag(s) @ v


LOW_RANK = CompressionMethod(
    name="low-rank",
    parameter="rank",
    neutral=0.0,
    stage="weights",
    summary="share of singular values to drop",
    implementation=f"{__name__}:LowRank",
)


@pytest.fixture
def low_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompressionMethod]:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    register(LOW_RANK)
    return LOW_RANK


def test_a_new_method_needs_one_registration(low_rank: CompressionMethod) -> None:
    from onefold.cli.compress import recipes_of
    from onefold.cli.recipe_options import with_recipe_options

    recipe = Recipe.of({"rank": 0.5, "precision": "int8"})
    check_recipe(recipe)
    assert [method.name for method, _ in active_methods(recipe)] == ["low-rank", "int8"]
    assert str(recipe) == "rank 0.5, int8"
    assert from_json(Recipe, to_json(recipe)) == recipe
    assert split_recipes(ForkOptions((recipe, Recipe(precision="int8")), epochs=2)) == (
        (Recipe(precision="int8"),),
        ((recipe, 2),),
    )
    network = small_network()
    low_rank.compressor.compress(network, 0.5, FewSteps())
    linear = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    assert all(torch.linalg.matrix_rank(layer.weight) <= min(layer.weight.shape) / 2 + 1 for layer in linear)
    assert recipes_of({"sparsity": [], "rank": [0.5]}) == [Recipe.of({"rank": 0.5})]

    def command(settings: dict[str, Value]) -> None:
        """Accept recipes."""

    import inspect

    assert "rank" in inspect.signature(with_recipe_options(command)).parameters


def test_names_and_parameters_are_unique(low_rank: CompressionMethod) -> None:
    with pytest.raises(InputError, match="named 'low-rank' already"):
        register(low_rank)
    with pytest.raises(InputError, match="belongs to 'magnitude-pruning'"):
        register(CompressionMethod("other", "sparsity", 0.0, "weights", "", "x:Y"))


def test_the_json_of_a_recipe_is_that_of_stored_studies() -> None:
    stored = {"sparsity": 0.8, "channels": 0.0, "precision": "int8"}
    assert to_json(Recipe(sparsity=0.8, precision="int8")) == stored
    assert from_json(Recipe, stored) == Recipe(sparsity=0.8, precision="int8")


def test_an_unknown_setting_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'sparsity'"):
        check_recipe(Recipe.of({"sparsty": 0.5}))
    with pytest.raises(InputError, match="did you mean 'int8'"):
        check_recipe(Recipe(precision="int9"))
    with pytest.raises(InputError, match="unknown compression method 'int9'"):
        registry.method_named("int9")
