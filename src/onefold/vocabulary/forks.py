"""Forks: trials that continue the checkpoint of a dense trial as a compressed variant.

A fork is a trial of its own, with a number by which it is measured, listed and exported. Its configuration is that of
its parent, the number of the parent as `compress_of`, and its recipe, such as `compress_sparsity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.variants import RECIPES, Recipe

PREFIX = "compress_"  # of the settings of a recipe: a network may have its own `channels`
PARENT = f"{PREFIX}of"
ENCODED_BYTES = "encoded_bytes"  # the metric: size of the packed model file


@dataclass(frozen=True, slots=True)
class Fork:
    """The dense trial that a fork continues, and the recipe of its variant."""

    parent: int
    recipe: Recipe

    def __str__(self) -> str:
        return f"{self.recipe} of trial {self.parent}"

    def config(self, parent: Config) -> Config:
        """Return the configuration of the fork from that of its parent."""
        settings = {f"{PREFIX}{name}": value for name, value in self.recipe.settings.items()}
        return Config(parent, **{PARENT: self.parent}, **settings)


def fork_of(config: Config) -> Fork | None:
    """Return what a configuration says of its fork; None for a dense trial."""
    parent = config.get(PARENT)
    if not isinstance(parent, int):
        return None
    settings = {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}
    del settings[PARENT.removeprefix(PREFIX)]
    return Fork(parent, Recipe.of(settings))


def dense_config(config: Config) -> Config:
    """Return the configuration without what makes it a fork: that of its workload."""
    if fork_of(config) is None:
        return config
    return Config({name: value for name, value in config.items() if not name.startswith(PREFIX)})


@suggest_fields
@dataclass(frozen=True, slots=True)
class ForkOptions:
    """How trials are compressed in the loop.

    Recipes that need no training, such as int8, are scored for the last checkpoint of every trial. The others fork
    trials with the full budget, the best ones first.
    """

    recipes: tuple[Recipe, ...] = RECIPES
    epochs: int = 3  # of fine-tuning after each kind of pruning; twice as many for the best forks of each recipe
    share: float = 0.5  # of all training epochs that forks may take
    max_metric_loss: float = 0.01  # by quantization; quantization-aware training follows if it is more
    distill: float = 0.0  # weight of the parent's class scores in the loss of a fork; 0 trains on the targets alone

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.recipes, Sequence) and not isinstance(self.recipes, str)
        if not is_sequence or not all(isinstance(recipe, Recipe) for recipe in self.recipes):
            raise InputError(
                f'recipes must be a tuple of recipes, such as (Recipe(precision="int8"),), but got {self.recipes!r}'
            )
        object.__setattr__(self, "recipes", tuple(self.recipes))
        if not self.recipes:
            raise InputError("recipes must have at least one recipe; leave it out for the default ones")
        if any(recipe.is_plain for recipe in self.recipes):
            raise InputError("recipes has one that changes nothing; every trial is trained uncompressed in any case")
        if isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1:
            raise InputError(f"epochs must be at least 1, since fine-tuning follows pruning, but got {self.epochs!r}")
        if not (_is_number(self.share) and 0 <= self.share < 1):
            raise InputError(f"share must be at least 0 and below 1, such as 0.5, but got {self.share!r}")
        if not (_is_number(self.max_metric_loss) and self.max_metric_loss >= 0):
            raise InputError(f"max_metric_loss must be at least 0, but got {self.max_metric_loss!r}")
        check_distill(self.distill)


def check_distill(distill: float) -> None:
    """Raise InputError unless `distill` is the weight of soft targets."""
    if not (_is_number(distill) and 0 <= distill <= 1):
        raise InputError(f"distill must be between 0 and 1, such as 0.5, but got {distill!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class PackedSize:
    """The size of the packed model of a trial after a rung."""

    trial: int
    encoded_bytes: int
