"""Which knobs to try: a generator that proposes a setting and is sent what a step cost with it.

proposals = few(offer.knobs)
setting = next(proposals)
while True:
    setting = proposals.send(cost)        # ends with StopIteration, whose value is the best setting
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import product

from onefold.vocabulary.records import Value

Setting = dict[str, Value]
Options = Mapping[str, Sequence[Value]]  # by knob: what it can be turned to, what was found first
Proposals = Generator[Setting, float, Setting]
WORTH_IT = 0.03  # a smaller gain is taken for noise


def few(knobs: Options) -> Proposals:
    """One knob after the other, each from the best setting so far; at the end what was found once more.

    Knobs hardly depend on each other, so their windows add up instead of multiplying. The last window guards against a
    disturbed first one: what does not beat the found setting right beside it is not kept.
    """
    found = {name: options[0] for name, options in knobs.items()}
    latest = best = found
    least = yield found
    for name, options in knobs.items():
        for option in options[1:]:
            latest = {**best, name: option}
            cost = yield latest
            if cost < least * (1 - WORTH_IT):
                best, least = latest, cost
    if best == found:
        return found
    beside = least if best == latest else (yield best)
    return best if beside < (yield found) * (1 - WORTH_IT) else found


def grid(knobs: Options) -> Proposals:
    """Every combination once."""
    costs: list[tuple[float, int, Setting]] = []
    for place, setting in enumerate(_combinations(knobs)):
        costs.append(((yield setting), place, setting))
    return min(costs)[2]


def halving(knobs: Options) -> Proposals:
    """Every combination, the better half again, and so on."""
    left = _combinations(knobs)
    while len(left) > 1:
        costs = []
        for place, setting in enumerate(left):
            costs.append(((yield setting), place))
        left = [left[place] for _, place in sorted(costs)[: (len(left) + 1) // 2]]
    return left[0]


PROBINGS: dict[str, Callable[[Options], Proposals]] = {"few": few, "grid": grid, "halving": halving}


def _combinations(knobs: Options) -> list[Setting]:
    return [dict(zip(knobs, values)) for values in product(*knobs.values())]
