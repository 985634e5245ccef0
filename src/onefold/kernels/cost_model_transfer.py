"""What other operators taught: the cost model knows something before the first candidate of this one is measured."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onefold.kernels.cost_model import CostModel
from onefold.kernels.schedule_space import ScheduleSpace
from onefold.kernels.schedule_transfer import unlike
from onefold.kernels.targets import Target
from onefold.kernels.toolchain import tvm
from onefold.vocabulary.kernels import Operator, ScheduleCandidate

MOST, EACH = 240, 16  # candidates to teach with: in all, of one operator
FEWEST = 4  # of an operator, to tell fast from slow


def packed(module: Any) -> str:
    """Loops as a text that can be kept."""
    return base64.b64encode(zlib.compress(tvm().ir.save_json(module).encode())).decode()


def unpacked(text: str) -> Any:
    """The loops again."""
    return tvm().ir.load_json(zlib.decompress(base64.b64decode(text)).decode())


def teach(
    model: CostModel,
    operators: Iterable[Operator],
    known: Iterable[tuple[Operator, Sequence[ScheduleCandidate]]],
    loops: Callable[[str], str],
    target: Target,
) -> int:
    """Lets the model learn from candidates of other operators, those most like the given ones first; how many."""
    wanted = list(operators)
    taught = 0

    def distance(pair: tuple[Operator, Sequence[ScheduleCandidate]]) -> float:
        return min((unlike(pair[0], one) for one in wanted), default=math.inf)

    for operator, candidates in sorted(known, key=distance):
        text = loops(operator.key)
        if taught >= MOST or not text or math.isinf(distance((operator, candidates))):
            continue
        space = ScheduleSpace(operator, unpacked(text), target)
        chosen = _spread([one for one in candidates if one.latency_s is not None])
        made = [(proposal, one) for one in chosen if (proposal := space.remade(one.trace)) is not None]
        if len(made) >= FEWEST:
            model.learn(space, [proposal for proposal, _ in made], [one.latency_s for _, one in made])
            taught += len(made)
    return taught


def _spread(candidates: Sequence[ScheduleCandidate]) -> list[ScheduleCandidate]:
    """A few of them from the fastest to the slowest."""
    ordered = sorted(candidates, key=lambda one: one.latency_s or 0.0)
    step = max(1.0, (len(ordered) - 1) / (EACH - 1))
    return [ordered[min(len(ordered) - 1, round(at * step))] for at in range(min(EACH, len(ordered)))]
