"""The CandidateStrategy protocol, and sampling of distinct proposals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from onefold.kernels.schedule_space import Proposal

SAMPLES_PER_PROPOSAL = 8  # samples for each wanted proposal, before a space counts as exhausted


class CandidateStrategy(Protocol):
    """Proposes candidates for one operator and learns from their latencies.

    It never proposes a key in `seen`, which its owner fills, and fewer proposals than requested only if it finds no
    more. Proposals are a pure function of the space's seed and of the results it received.
    """

    seen: set[str]

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return up to `count` distinct unseen proposals, then up to `spare` replacements for dropped ones."""

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Learn from measured proposals, also of other strategies; None is a failure."""


def unseen(samples: Iterator[Proposal | None], count: int, seen: set[str]) -> list[Proposal]:
    """Return the first `count` samples that are valid, not in `seen` and distinct."""
    distinct: dict[str, Proposal] = {}
    for proposal in samples if count > 0 else ():
        if proposal is not None and proposal.key not in seen:
            distinct.setdefault(proposal.key, proposal)
        if len(distinct) >= count:
            break
    return list(distinct.values())


def repeat(sample: Callable[[], Proposal | None], times: int) -> Iterator[Proposal | None]:
    """Yield the results of calling `sample` this many times."""
    for _ in range(times):
        yield sample()
