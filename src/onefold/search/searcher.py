"""The seam between a search and its algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from onefold.vocabulary.records import Config


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rung of a trial showed: one loss per goal, smaller is better; `losses` is None when it failed."""

    trial: int
    level: int
    config: Config
    losses: tuple[float, ...] | None
    violation: float = 0.0  # how far the requirements are missed; 0 when they hold


class SpaceExhausted(Exception):
    """There is no configuration left to ask for."""


class Searcher(Protocol):
    """Proposes configurations of one space.

    Every answer is a pure function of the space, the seed, the number and attempt asked for, and what was told and
    asked before: two searchers that lived through the same calls answer the same. A searcher never reads a clock,
    the machine or a global random generator.
    """

    def ask(self, number: int, attempt: int = 0) -> Config:
        """The configuration of trial `number`; a higher `attempt` replaces a draw that was refused or known already.

        Raises SpaceExhausted when there is nothing new to propose.
        """

    def tell(self, observation: Observation) -> None:
        """Learns what a rung showed. A trial may be told several times, once for each level it reached.

        What is told again of a trial at a level has another violation than before, since bounds may be counted from the
        best; an algorithm that cannot learn anew may keep the first.
        Observations of trials never asked for (a warm start) are welcome; their numbers are negative.
        """

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:
        """Puts the searcher where `ask(number, 0)` to `ask(number, attempt)` left it, the last one answering `config`.

        A resumed study calls this in place of `ask` for what was decided before; it costs little.
        """
