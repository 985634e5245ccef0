"""The cores that the parent lends to the current run of this process, beyond those to which the run is pinned.

The parent says so while the run is busy; a run that can use more cores looks from time to time.
"""

from __future__ import annotations

from collections.abc import Sequence

_loan: tuple[int, tuple[int, ...]] = (0, ())  # run, cores
_run = 0  # the current one


def begin_run(run: int) -> None:
    """Forget what was lent to the run before."""
    global _run
    _run = run


def record_loan(run: int, cores: Sequence[int]) -> None:
    """Note which cores are lent to a run from now on; none if they are taken back."""
    global _loan
    _loan = (run, tuple(cores))


def lent_cores() -> tuple[int, ...]:
    """Return the cores that are lent to the current run."""
    run, cores = _loan
    return cores if run == _run else ()
