"""Several goals: which trials a study promotes, and which one it hands over, over 20 recorded studies.

A recorded study is a grid of 450 small networks (width, depth, bits of the weights, batch size, learning rate) on a
sample of one of five image data sets, each trained for nine epochs for real (`--record` trains them again). The goals
are accuracy, latency and size. A method searches the grid for the cost of Onefold's default budget, 27 trials, in
epochs; its fully trained networks are judged by the hypervolume that they dominate (costs on a logarithmic scale, from
the best to the worst of the grid, as a share of what the whole grid dominates), and the one that it hands over by its
regret: the distance from the best of every goal, where 5 % of the accuracy count like the whole range of a cost, less
that of the grid's best. Each method follows the same TPE and halving unless it says otherwise:

- onefold: the defaults, with a guard of 5 % on accuracy
- epsilon-net, NSGA-II crowding: other orders inside a front, for promotion and for what is handed over (the first)
- random scalarization: random weights for each promotion, and for what is handed over
- Optuna MOTPE: Optuna's multi-objective TPE, which trains every trial fully, seven at this cost, and the knee of its
  front; after four random trials instead of ten, since it would not begin to learn otherwise
"""

from __future__ import annotations

import json
import lzma
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from claims import Claim, argument_parser, conclude, table
from three_goals.recording import EPOCHS, FILE, SPACE, VALIDATION, grid, record

from onefold import Budget, Config, Objective, Search
from onefold.vocabulary.pareto import KneeDistance, dominates, fronts
from onefold.vocabulary.preference import GUARD_SHARE
from onefold.vocabulary.records import Metrics

Point = Sequence[float]
GOALS: dict[str, Any] = {"maximize": "accuracy", "minimize": ("latency_s", "size_bytes")}
BUDGET = Budget(max_epochs=EPOCHS)
STARTUP = 4  # random trials of Optuna's TPE


@dataclass
class Recorded:
    """One recorded study: what each configuration of the grid reached after each epoch."""

    content: dict[str, Any]

    def metrics(self, config: int, epochs: int) -> Metrics:
        """Return the metrics of a configuration after so many epochs."""
        return {
            "accuracy": self.content["correct"][config][epochs - 1] / VALIDATION,
            "latency_s": self.content["latency_s"][config],
            "size_bytes": float(self.content["size_bytes"][config]),
        }

    @cached_property
    def points(self) -> list[Point]:
        """Return the fully trained networks, each goal from 0 (the best of the grid) to 1 (its worst)."""
        full = [self.metrics(config, EPOCHS) for config in range(len(self.content["correct"]))]
        losses = [(-m["accuracy"], math.log(m["latency_s"]), math.log(m["size_bytes"])) for m in full]
        return _scaled(losses)

    def hypervolume(self, configs: Sequence[int]) -> float:
        """Return the share of the grid's hypervolume that these fully trained configurations dominate."""
        return hypervolume([self.points[config] for config in configs]) / self._whole

    @cached_property
    def _whole(self) -> float:
        return hypervolume([self.points[config] for config in fronts(self.points)[0]])

    def regret(self, config: int) -> float:
        """Return how much further from the best of every goal a configuration is than the grid's best."""
        return self._distance(config) - self._least

    @cached_property
    def _least(self) -> float:
        return min(map(self._distance, range(len(self.points))))

    @cached_property
    def _highest(self) -> float:
        return max(self.metrics(config, EPOCHS)["accuracy"] for config in range(len(self.points)))

    def _distance(self, config: int) -> float:
        lost = (1 - self.metrics(config, EPOCHS)["accuracy"] / self._highest) / GUARD_SHARE
        return math.hypot(lost, *self.points[config][1:])


def hypervolume(points: Sequence[Point], reference: float = 1.0) -> float:
    """Return the volume that points dominate up to the reference in every goal."""
    inside = sorted((p for p in points if all(value < reference for value in p)), key=lambda p: p[-1])
    if not inside:
        return 0.0
    if len(inside[0]) == 1:
        return reference - inside[0][0]
    ends = [*(p[-1] for p in inside[1:]), reference]
    slabs = ((end - p[-1], inside[: count + 1]) for count, (p, end) in enumerate(zip(inside, ends)))
    return sum(width * hypervolume([p[:-1] for p in below], reference) for width, below in slabs if width > 0)


def _scaled(losses: Sequence[Point]) -> list[Point]:
    ends = [(min(column), max(column)) for column in zip(*losses)]
    return [tuple((v - low) / ((high - low) or 1.0) for v, (low, high) in zip(p, ends)) for p in losses]


# Other orders inside a front, as lists of positions.


def crowding(front: Sequence[Point]) -> list[int]:
    """Order a front by NSGA-II's crowding distance, the least crowded first."""
    distance = [0.0] * len(front)
    for column in zip(*front):
        order = sorted(range(len(front)), key=lambda i: (column[i], i))
        span = column[order[-1]] - column[order[0]]
        distance[order[0]] = distance[order[-1]] = math.inf
        for before, here, after in zip(order, order[1:], order[2:]):
            distance[here] += (column[after] - column[before]) / span if span > 0 else 0.0
    return sorted(range(len(front)), key=lambda i: (-distance[i], i))


def epsilon_net(front: Sequence[Point]) -> list[int]:
    """Order a front from the knee on, each time the member furthest from all earlier ones."""
    points, knee = _scaled(front), KneeDistance(front, [1.0] * len(front[0]))
    order = [min(range(len(front)), key=lambda i: (knee(front[i]), i))]
    left = set(range(len(front))) - set(order)
    while left:
        order.append(max(left, key=lambda i: (min(math.dist(points[i], points[j]) for j in order), -i)))
        left.discard(order[-1])
    return order


class OrderedObjective(Objective):
    """An objective that orders the members of a front by another rule."""

    def __init__(self, rule: Callable[[Sequence[Point]], list[int]]) -> None:
        super().__init__(**GOALS)
        object.__setattr__(self, "rule", rule)

    def order_of_front(self, front: Sequence[Metrics]) -> Iterator[int]:
        """Yield the positions of the members of a front by the rule."""
        return iter(self.rule([self.losses(metrics) for metrics in front]))  # type: ignore[attr-defined]

    def order_of_preference(self, results: Sequence[Metrics]) -> list[int]:
        """Return the order in which results are promoted: the first is handed over."""
        return self.order(results)


class RandomScalarization(OrderedObjective):
    """Promotes the best by a random weighted sum, with new weights for each promotion."""

    def __init__(self, seed: int) -> None:
        super().__init__(crowding)
        object.__setattr__(self, "rng", random.Random(seed))

    def order(self, results: Sequence[Metrics]) -> list[int]:
        """Return the positions of the results, each the best of those left by other weights."""
        rng: random.Random = self.rng  # type: ignore[attr-defined]
        costs = ("latency_s", "size_bytes")
        points = _scaled([(-m["accuracy"], *(math.log(m[cost]) for cost in costs)) for m in results])
        left, order = set(range(len(results))), list[int]()
        while left:
            weights = [rng.expovariate(1.0) for _ in range(3)]
            order.append(min(left, key=lambda i: (sum(w * v for w, v in zip(weights, points[i])), i)))
            left.discard(order[-1])
        return order


Outcome = tuple[list[int], int, int]  # fully trained configurations, the one handed over, epochs


def halving(study: Recorded, objective: Objective, seed: int) -> Outcome:
    """Search a recorded study with Onefold's defaults and an objective."""
    position = {config: at for at, config in enumerate(grid())}
    search = Search(SPACE, objective=objective, budget=BUDGET, seed=seed)
    trained: dict[int, int] = {}
    full: list[int] = []
    while (decision := search.ask()) is not None:
        at, epochs = position[decision.config], decision.grant.epochs
        trained[at] = epochs
        search.tell(decision.number, study.metrics(at, epochs))
        if epochs == EPOCHS:
            full.append(at)
    chosen = full[objective.order_of_preference([study.metrics(at, EPOCHS) for at in full])[0]]
    return full, chosen, sum(trained.values())


def motpe(study: Recorded, seed: int, epochs: int) -> Outcome:
    """Search a recorded study with Optuna's multi-objective TPE, every trial fully trained, for so many epochs."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    position = {config: at for at, config in enumerate(grid())}
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=STARTUP)
    tuner = optuna.create_study(directions=["maximize", "minimize", "minimize"], sampler=sampler)
    full: list[int] = []
    for _ in range(max(1, round(epochs / EPOCHS))):
        trial = tuner.ask()
        values = {name: trial.suggest_categorical(name, p.grid(0)) for name, p in SPACE.parameters.items()}
        at = position[Config(values)]
        full.append(at)
        tuner.tell(trial, list(study.metrics(at, EPOCHS).values()))
    objective = Objective(**GOALS)
    chosen = full[objective.order_of_preference([study.metrics(at, EPOCHS) for at in full])[0]]
    return full, chosen, EPOCHS * len(full)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--record", action="store_true", help="train all networks again first")
    options = parser.parse_args()
    if options.record:
        record()
    studies = [Recorded(content) for content in json.loads(lzma.decompress(FILE.read_bytes()))["studies"]]
    seeds = 1 if options.quick else 3
    onefold = Objective(**GOALS).guarded("accuracy", maximize=True)
    rows: list[dict[str, Any]] = []
    undominated = guarded = 0
    for number, study in enumerate(studies):
        for seed in range(seeds):
            outcomes = {"onefold": halving(study, onefold, seed)}
            full, chosen, epochs = outcomes["onefold"]
            losses = [onefold.losses(study.metrics(at, EPOCHS)) for at in full]
            own = onefold.losses(study.metrics(chosen, EPOCHS))
            undominated += not any(dominates(other, own) for other in losses)
            guarded += own[0] <= (1 - GUARD_SHARE) * min(loss[0] for loss in losses) + 1e-9
            outcomes["epsilon-net"] = halving(study, OrderedObjective(epsilon_net), seed)
            outcomes["NSGA-II crowding"] = halving(study, OrderedObjective(crowding), seed)
            outcomes["random scalarization"] = halving(study, RandomScalarization(seed), seed)
            outcomes["Optuna MOTPE"] = motpe(study, seed, epochs)
            for method, (full, chosen, epochs) in outcomes.items():
                best = max(study.metrics(at, EPOCHS)["accuracy"] for at in full)
                rows.append(
                    {
                        "study": number,
                        "source": study.content["source"],
                        "seed": seed,
                        "method": method,
                        "hypervolume": study.hypervolume(full),
                        "regret": study.regret(chosen),
                        "accuracy below the best": best - study.metrics(chosen, EPOCHS)["accuracy"],
                        "epochs": epochs,
                    }
                )
        table(rows[-5:])
    conclude("multi_goal", _claims(rows, undominated, guarded), rows, quick=options.quick)


def _claims(rows: Sequence[dict[str, Any]], undominated: int, guarded: int) -> list[Claim]:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    mean = {
        (method, figure): statistics.mean(row[figure] for row in rows if row["method"] == method)
        for method in methods
        for figure in ("hypervolume", "regret")
    }
    runs = sum(row["method"] == "onefold" for row in rows)
    table([{"method": m, "hypervolume": mean[m, "hypervolume"], "regret": mean[m, "regret"]} for m in methods])
    claims = []
    for figure, sign in (("hypervolume", 1), ("regret", -1)):
        best = all(sign * mean["onefold", figure] >= sign * mean[method, figure] for method in methods)
        measured = ", ".join(f"{method} {mean[method, figure]:.3f}" for method in methods)
        bar = "highest of all" if sign > 0 else "lowest of all"
        what = "of the fully trained networks" if sign > 0 else "of the network handed over"
        claims.append(Claim(f"mean {figure} {what}", bar, measured, best))
    claims.append(
        Claim("the network handed over is not dominated", "always", f"{undominated} of {runs}", undominated == runs)
    )
    share = f"at most {GUARD_SHARE:.0%} below the most accurate"
    claims.append(Claim(f"the network handed over is {share}", "always", f"{guarded} of {runs}", guarded == runs))
    return claims


if __name__ == "__main__":
    main()
