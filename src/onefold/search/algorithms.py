"""Search algorithms by name: one for the whole space, or one per group of parameters."""

from __future__ import annotations

from collections.abc import Mapping

from onefold.search.samples import derive_seed
from onefold.search.searcher import Searcher
from onefold.vocabulary.errors import SpaceError, unknown
from onefold.vocabulary.space import Space

ALGORITHMS = ("cmaes", "gp", "grid", "nsga2", "random", "tpe")
DEFAULT = "tpe"
REST = "*"


def create_searcher(algorithm: str | Mapping[str, str], space: Space, seed: int = 0, goals: int = 1) -> Searcher:
    """Return the searcher of that name, or one that joins several: `{"model": "grid", "training": "tpe"}`.

    Groups joined by a plus are searched together (`{"model+training": "gp"}`); groups that are not named are searched
    together by the algorithm of `"*"`, or by TPE.
    """
    if isinstance(algorithm, str):
        return _single(algorithm, space, seed, goals)
    parts = _parts(algorithm, space)
    if len(parts) == 1:
        return _single(next(iter(parts.values())), space, seed, goals)
    from onefold.search.grouped import GroupedSearcher

    return GroupedSearcher(
        space,
        {
            groups: _single(name, space.only(groups), derive_seed(seed, *groups), goals, cycle=True)
            for groups, name in parts.items()
        },
    )


def _parts(algorithm: Mapping[str, str], space: Space) -> dict[tuple[str, ...], str]:
    parts: dict[tuple[str, ...], str] = {}
    for key, name in algorithm.items():
        groups = tuple(key.split("+")) if key != REST else ()
        for group in groups:
            if group not in space.groups:
                raise SpaceError(unknown("group", group, space.groups, of="the space"))
            if any(group in others for others in parts):
                raise SpaceError(f"group {group!r} has two algorithms; name it once")
        if groups:
            parts[groups] = name
    rest = tuple(group for group in space.groups if not any(group in groups for groups in parts))
    if rest:
        parts[rest] = algorithm.get(REST, DEFAULT)
    return parts


def _single(name: str, space: Space, seed: int, goals: int, *, cycle: bool = False) -> Searcher:
    # Imported on use: optuna takes most of a second to import, and random and grid search do not need it.
    match name:
        case "random":
            from onefold.search.random_search import RandomSearcher

            return RandomSearcher(space, seed)
        case "grid":
            from onefold.search.grid_search import GridSearcher

            return GridSearcher(space, seed, cycle=cycle)
        case "tpe":
            from onefold.search.tpe import TpeSearcher

            return TpeSearcher(space, seed, goals)
        case "gp":
            from onefold.search.gp import GpSearcher

            return GpSearcher(space, seed, goals)
        case "cmaes":
            from onefold.search.cma_es import CmaEsSearcher

            return CmaEsSearcher(space, seed, goals)
        case "nsga2":
            from onefold.search.nsga2 import Nsga2Searcher

            return Nsga2Searcher(space, seed, goals)
    raise SpaceError(unknown("algorithm", name, ALGORITHMS))
