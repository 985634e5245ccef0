"""Search strategies for knobs: generators that propose a setting and are sent the cost of a step with it.

proposals = coordinate_search(available.options)
setting = next(proposals)
while True:
    setting = proposals.send(cost)        # raises StopIteration at the end, with the best setting as its value
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import product

from onefold.vocabulary.records import Value

Setting = dict[str, Value]
Options = Mapping[str, Sequence[Value]]  # the values of each knob, the default first
Proposals = Generator[Setting, float, Setting]
MIN_GAIN = 0.03  # relative; smaller gains count as noise


def coordinate_search(knobs: Options) -> Proposals:
    """Optimize one knob after the other from the best setting so far.

    Knobs hardly interact, so the number of windows is a sum instead of a product.
    """
    best: Setting = {name: options[0] for name, options in knobs.items()}
    lowest = yield best
    for name, options in knobs.items():
        for option in options[1:]:
            candidate = {**best, name: option}
            cost = yield candidate
            if cost < lowest * (1 - MIN_GAIN):
                best, lowest = candidate, cost
    return best


def grid_search(knobs: Options) -> Proposals:
    """Measure every combination once."""
    costs: list[tuple[float, int]] = []
    settings = _combinations(knobs)
    for index, setting in enumerate(settings):
        costs.append(((yield setting), index))
    return settings[min(costs)[1]]


def successive_halving(knobs: Options) -> Proposals:
    """Measure every combination, then the better half again, until one is left."""
    settings = _combinations(knobs)
    while len(settings) > 1:
        costs = []
        for index, setting in enumerate(settings):
            costs.append(((yield setting), index))
        settings = [settings[index] for _, index in sorted(costs)[: (len(settings) + 1) // 2]]
    return settings[0]


# By the name that KnobOptions.probing has.
STRATEGIES: dict[str, Callable[[Options], Proposals]] = {
    "few": coordinate_search,
    "grid": grid_search,
    "halving": successive_halving,
}


def _combinations(knobs: Options) -> list[Setting]:
    return [dict(zip(knobs, values)) for values in product(*knobs.values())]
