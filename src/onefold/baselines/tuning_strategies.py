"""Strategies of tuning a model for a device: all at once, one tier after the other, and for accuracy alone.

The latter two are the comparators of EdgeTune: Rocha et al., section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.vocabulary.errors import InputError, unknown


@dataclass(frozen=True)
class TuningStrategy:
    """What a strategy takes into account while it chooses a model.

    Attributes:
        name: Its name.
        considers_serving: Whether the goal counts what training and serving cost; otherwise it is the workload's own.
        tunes_knobs: Whether the knobs of every trial are tuned while it trains.
        tunes_winner: Whether the knobs of the winner are tuned afterwards, in a training of its own.
        tunes_serving: Whether the winner is served at the best of its serving points; otherwise one sample at a time
            with all cores.
    """

    name: str
    considers_serving: bool = False
    tunes_knobs: bool = False
    tunes_winner: bool = False
    tunes_serving: bool = False


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        TuningStrategy("onefold", considers_serving=True, tunes_knobs=True, tunes_serving=True),
        TuningStrategy("hierarchical", tunes_winner=True, tunes_serving=True),
        TuningStrategy("accuracy-only"),
    )
}


def strategy_named(name: str) -> TuningStrategy:
    """Return a strategy by name. Raises InputError for an unknown one."""
    if name not in STRATEGIES:
        raise InputError(unknown("strategy", name, STRATEGIES, with_list=True))
    return STRATEGIES[name]
