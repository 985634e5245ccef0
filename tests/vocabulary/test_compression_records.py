"""Records of compression refuse values without a meaning as soon as they are built."""

from __future__ import annotations

from typing import Any

import pytest

from onefold import ForkOptions, Recipe
from onefold.vocabulary.errors import InputError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 2}, "share must be at least 0 and below 1, such as 0.5, but got 2"),
        ({"share": "50%"}, "share must be .* but got '50%'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": 1.5}, "epochs must be at least 1"),
        ({"distill": -1}, "distill must be between 0 and 1"),
        ({"max_metric_loss": -0.1}, "max_metric_loss must be at least 0"),
        ({"recipes": ()}, "at least one recipe"),
        ({"recipes": "int8"}, "recipes must be a tuple of recipes, .* but got 'int8'"),
        ({"recipes": Recipe(precision="int8")}, "recipes must be a tuple of recipes"),
        ({"recipes": ("int8",)}, "recipes must be a tuple of recipes"),
        ({"recipes": (Recipe(),)}, "changes nothing"),
    ],
)
def test_invalid_options_of_forks_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ForkOptions(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sparsity": 2}, "sparsity must be at least 0 and below 1, such as 0.5, but got 2"),
        ({"sparsity": 1.0}, "sparsity must be"),
        ({"channels": -0.1}, "channels must be"),
        ({"channels": True}, "channels must be"),
        ({"precision": 8}, 'precision must be a name such as "int8", but got 8'),
    ],
)
def test_invalid_recipes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**values)


def test_a_list_of_recipes_is_kept_as_a_tuple() -> None:
    recipes: Any = [Recipe(precision="int8")]
    assert ForkOptions(recipes) == ForkOptions((Recipe(precision="int8"),))
