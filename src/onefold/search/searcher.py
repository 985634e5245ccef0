"""The seam between a search and its algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from onefold.vocabulary.records import Config


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a rung: one loss per goal, smaller is better; None if it failed."""

    trial: int
    level: int
    config: Config
    losses: tuple[float, ...] | None
    violation: float = 0.0  # by how much the requirements are missed; 0 if they are met


class SpaceExhausted(Exception):
    """No configuration is left to propose."""


class Searcher(Protocol):
    """Propose configurations of one space.

    Every proposal is a pure function of the space, the seed, the number and attempt, and the calls before: after the
    same calls two searchers propose the same. A searcher never reads a clock, the machine or a global random generator.
    """

    def ask(self, number: int, attempt: int = 0) -> Config:
        """Return the configuration of trial `number`; a higher `attempt` replaces one that was refused or known.

        Raises SpaceExhausted if there is nothing new to propose.
        """

    def tell(self, observation: Observation) -> None:
        """Learn the result of a rung. A trial is told once for each level it reached.

        A trial that is told again at the same level has another violation, since bounds may be relative to the best; an
        algorithm that cannot correct a result may keep the first. Trials that were not proposed (a warm start) have
        negative numbers.
        """

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:
        """Restore the state after `ask(number, 0)` … `ask(number, attempt)`, of which the last returned `config`.

        A resumed study calls this instead of `ask` for what was decided before; it is cheap.
        """
