"""Options of a study, grouped by what they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from onefold.compression.selection import SelectionOptions
from onefold.engine import EngineName
from onefold.search import Algorithm, ForkPlan
from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.forks import ForkOptions
from onefold.vocabulary.records import Value
from onefold.vocabulary.variants import RECIPES

CompressMode = Literal["off", "in-loop", "after"]


@suggest_fields
@dataclass(frozen=True)
class SearchOptions:
    """How configurations are proposed and promoted.

    `algorithm` is grid, random, tpe, gp, cmaes, nsga2 or bohb (tpe with hyperband), or a mapping from parameter groups
    to one of them; the groups `system` and `serving`, which are tuned inside of a trial, take few, grid or halving, and
    few or grid. `rungs` is none, halving, hyperband, asha or top-k; by default halving, and none for functions that
    report once. `warm_start`
    names a study over the same space to learn from. `first` are configurations to try before any is proposed, and
    `arms` groups of their positions; with top-k, the best of each group are promoted. `pairs` has, by arm, pairs of a
    position in it and one in the first arm; the pairs with the best trials of either side are promoted too.
    """

    algorithm: Algorithm = "tpe"
    rungs: str | None = None
    top_k: int = 3
    warm_start: str | None = None
    first: Sequence[Mapping[str, Value]] = ()
    arms: Sequence[Sequence[int]] = ()
    pairs: Sequence[Sequence[tuple[int, int]]] = ()


@suggest_fields
@dataclass(frozen=True, slots=True)
class ParallelismOptions:
    """Where trials run, how many in parallel, and within which limits.

    Without `parallel`, the number of parallel trials and the threads of each are measured on the real workload.
    `memory_bytes` limits each trial. A trial that reports nothing for `hang_timeout_s` has hung and fails.
    """

    parallel: int | None = None
    threads: int | None = None
    accelerator: str = "cpu"
    engine: EngineName = "processes"
    memory_bytes: int | None = None
    hang_timeout_s: float = 600.0

    def check(self) -> None:
        """Raise InputError for the first invalid option."""
        if self.engine not in get_args(EngineName):
            raise InputError(unknown("engine", self.engine, get_args(EngineName)))
        for name in ("parallel", "threads", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise InputError(f"{name} must be 1 or more, got {value}; leave it out for the default")
        if self.threads and not self.parallel:
            raise InputError(
                f"threads={self.threads} is per trial; give also how many run in parallel, such as parallel=2"
            )
        if not self.hang_timeout_s > 0:
            raise InputError(f"hang_timeout_s must be above 0, got {self.hang_timeout_s}")


BOHB = "bohb"  # a name for TPE with Hyperband


def algorithm_and_rungs(search: SearchOptions, default_rungs: str) -> tuple[Algorithm, str]:
    """Return the search algorithm and the rungs; `bohb` stands for both. Raises InputError if it is given only one."""
    if search.algorithm == BOHB:
        if search.rungs not in (None, "hyperband"):
            raise InputError(
                f"bohb is tpe with hyperband, and rungs are {search.rungs!r}; leave them out, or search with tpe"
            )
        return "tpe", "hyperband"
    if not isinstance(search.algorithm, str) and BOHB in search.algorithm.values():
        raise InputError("bohb is tpe with hyperband for the whole space; give a group tpe, and rungs='hyperband'")
    return search.algorithm, search.rungs or default_rungs


def check_selection(selection: SelectionOptions) -> None:
    """Raise InputError for an invalid option of the selection of a variant after a study."""
    if selection != SelectionOptions():
        selection.check(RECIPES)


def compress_options(
    compress: CompressMode | ForkOptions | SelectionOptions,
) -> tuple[CompressMode, ForkOptions, SelectionOptions]:
    """Return the mode that the `compress` of a study means, with the options of both modes."""
    if isinstance(compress, ForkOptions):
        return "in-loop", compress, SelectionOptions()
    if isinstance(compress, SelectionOptions):
        return "after", ForkOptions(), compress
    return compress, ForkOptions(), SelectionOptions()


def fork_plan(options: ForkOptions, budget: Budget) -> ForkPlan:
    """Return what the search needs to know of forks; raises InputError for an invalid recipe or budget."""
    from onefold.compression.forks import split_recipes  # imports torch

    if budget.kind == "time":
        raise InputError(
            'compress="in-loop" divides epochs between trials and their forks, but a budget with kind="time" '
            'grants seconds; use kind="epochs"'
        )
    scored, trained = split_recipes(options)
    return ForkPlan(scored, trained, options.share)


def check_compress_mode(mode: str) -> None:
    """Raise InputError unless `mode` is a CompressMode."""
    if mode not in get_args(CompressMode):
        raise InputError(unknown("compress mode", mode, get_args(CompressMode)))
