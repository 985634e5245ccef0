"""A simulated study: successive halving with conditions, failures, rejected configurations and plausible costs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

from onefold import Budget, Choice, Float, Int, Objective, Space
from onefold.report import Summary, summarize
from onefold.store import StudyRecord
from onefold.vocabulary.records import (
    Config,
    Energy,
    Epoch,
    Failure,
    FailureKind,
    Measurement,
    Refusal,
    Rung,
    RungState,
    StudyState,
    Trial,
    TrialState,
)

SPACE = Space(
    model={"width": Choice(16, 32, 64, 128), "depth": Int(1, 4), "activation": Choice("relu", "gelu", "tanh")},
    training={
        "optimizer": Choice("sgd", "adam"),
        "lr": Float(1e-4, 1e-1, log=True, default=1e-2),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
        "batch_size": Choice(32, 64, 128, 256),
        "dropout": Float(0.0, 0.5),
        "epochs": 9,
    },
)
TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/digits.py", line 41, in build
    layers.append(nn.Linear(width, width))
RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x128 and 64x64)"""
FAILURES = (
    Failure(FailureKind.NOT_A_NUMBER, "the loss is not a number in epoch 1"),
    Failure(FailureKind.RAISED, TRACEBACK.splitlines()[-1], TRACEBACK),
    Failure(FailureKind.OUT_OF_MEMORY, "the trial needed more than its share of 2 GiB"),
)


@dataclass
class Simulated:
    """The input of a report."""

    study: StudyRecord
    trials: list[Trial]
    epochs: list[Epoch]

    @property
    def summary(self) -> Summary:
        return summarize(self.study, self.trials, self.epochs)


def simulate(
    trials: int = 27,
    *,
    objective: Objective | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    failing: float = 0.15,
    source: str = "modelled",
    name: str = "digits-2026-09-01",
    space: Space = SPACE,
    rungs: str = "halving",
) -> Simulated:
    """Simulate successive halving over `trials` configurations, `failing` of which fail."""
    rng = random.Random(seed)
    budget = budget or Budget(trials=max(trials, 1))
    world = _World(rng, budget, source, failing)
    made = [Trial(number, space.draw(rng), TrialState.WAITING) for number in range(trials)]
    levels = budget.levels() if rungs == "halving" else (budget.top_level,)
    wanted = objective or Objective(maximize="accuracy")
    entrants = list(range(trials))
    for visit, level in enumerate(levels):
        for number in entrants:
            made[number] = world.visit(made[number], visit, level, last=level == levels[-1])
        alive = [n for n in entrants if made[n].state is not TrialState.FAILED]
        order = [alive[index] for index in wanted.order([made[n].metrics for n in alive])]
        going = order[: max(1, len(entrants) // budget.eta)] if level != levels[-1] else []
        for number in order:
            if number not in going and level != levels[-1]:
                made[number] = replace(made[number], state=TrialState.STOPPED)
        entrants = going
    if made:
        refused = Refusal(made[0].config, "a network of 4 layers of 128 is too large for the device")
        made[0] = replace(made[0], refusals=(refused,))
    spec: dict[str, Any] = {
        "workload": "digits",
        "space": space.to_json(),
        "objective": wanted.to_json(),
        "budget": {field: getattr(budget, field) for field in budget.__dataclass_fields__},
        "search": "tpe",
        "rungs": rungs,
        "seed": seed,
        "parallel": 4,
        "threads": 2,
        "accelerator": "cpu",
    }
    state = StudyState.DONE if any(t.finished_rungs for t in made) or not made else StudyState.FAILED
    reason = f"all {trials} trials are done" if state is StudyState.DONE else "every trial failed"
    study = StudyRecord(name, spec, "2026-09-01T08:30:12Z", state, reason, elapsed_s=world.clock_s + 1.4)
    return Simulated(study, made, world.epochs)


class _World:
    """Simulated time on four workers."""

    def __init__(self, rng: random.Random, budget: Budget, source: str, failing: float) -> None:
        self.rng, self.budget, self.source, self.failing = rng, budget, source, failing
        self.free_s = [0.0] * 4
        self.decisions = 0
        self.epochs: list[Epoch] = []

    @property
    def clock_s(self) -> float:
        return max(self.free_s)

    def visit(self, trial: Trial, visit: int, level: int, *, last: bool) -> Trial:
        grant = self.budget.grant(level, visit + 1)
        worker = self.free_s.index(min(self.free_s))
        started_s = self.free_s[worker]
        done = max((e.number for e in self.epochs if e.trial == trial.number), default=0)
        failure = None
        if self.rng.random() < self.failing / (1 + 2 * visit):
            failure = FAILURES[self.decisions % len(FAILURES)]
        per_epoch_s = self._epoch_s(trial.config) * grant.data
        made = []
        target = grant.epochs if grant.time_s is None else level
        for number in range(done + 1, done + 1 if failure else target + 1):
            made.append(self._epoch(trial, visit, number, per_epoch_s))
        self.epochs += made
        cost = sum((e.measurement for e in made), Measurement.nothing()) if made else self._cost(per_epoch_s / 2)
        self.free_s[worker] += cost.time_s + 0.05
        metrics = dict(made[-1].metrics) if made else {}
        if made:
            metrics |= {"train_time_s": cost.time_s, "memory_bytes": float(cost.memory_bytes or 0)}
            metrics |= {"parameters": float(_parameters(trial.config))}
            if cost.energy.joules is not None:
                metrics["energy_j"] = cost.energy.joules
        rung = Rung(
            decision=self.decisions,
            trial=trial.number,
            rung=visit,
            bracket=0,
            grant=grant,
            threads=2,
            state=RungState.FAILED if failure else RungState.DONE,
            metrics=metrics,
            measurement=cost,
            failure=failure,
            attempts=1,
            started_s=started_s,
            ended_s=self.free_s[worker],
        )
        self.decisions += 1
        state = TrialState.FAILED if failure else TrialState.DONE if last else TrialState.WAITING
        return replace(trial, rungs=(*trial.rungs, rung), state=state)

    def _epoch(self, trial: Trial, visit: int, number: int, time_s: float) -> Epoch:
        config = trial.config
        lr = float(config.get("lr", 1e-2) or 1e-2)
        ideal = 3e-3 if config.get("optimizer") == "adam" else 3e-2
        quality = math.exp(-((math.log10(lr / ideal)) ** 2) / 1.2)
        width = float(config.get("width", 16) or 16)
        quality *= 0.93 + 0.02 * math.log2(width / 16) + 0.01 * (config.get("depth") == 2)
        late = random.Random(trial.number).uniform(0.3, 1.5)  # some learn slowly and end well, so that ranks change
        speed = (0.3 + 0.6 * quality) * late
        reach = 0.1 + 0.885 * min(1.0, quality) ** 0.6
        accuracy = reach - (reach - 0.1) * math.exp(-speed * number) + self.rng.gauss(0, 0.004)
        accuracy = min(max(accuracy, 0.05), 0.9972)
        loss = -math.log(accuracy) * (1 + self.rng.random() * 0.1)
        metrics = {"accuracy": accuracy, "loss": loss, "train_loss": loss * 0.9}
        return Epoch(trial.number, number, visit, metrics, self._cost(time_s * self.rng.uniform(0.9, 1.1)))

    def _cost(self, time_s: float) -> Measurement:
        joules = None if self.source == "unavailable" else 14.0 * time_s
        return Measurement(time_s, time_s * 1.8, Energy(joules, self.source), int(self.rng.uniform(180, 260) * 2**20))

    def _epoch_s(self, config: Config) -> float:
        return 0.4 + _parameters(config) / 2e5 + 24 / float(config.get("batch_size", 64) or 64)


def _parameters(config: Config) -> int:
    width, depth = int(config.get("width", 16) or 16), int(config.get("depth", 1) or 1)
    return 64 * width + (depth - 1) * width * (width + 1) + 11 * width
