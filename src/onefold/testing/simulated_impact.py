"""Impact studies with simulated measurements, of which it is known what has an effect: for tests of statistics.

The space, the arms and the choice of the models to compare are those of a real study; only training is left out. In a
null study every property is noise. In the other kind the costs follow from the architecture, and the accuracy from the
training; each has noise, except for those that are counted (FLOPs, size).
"""

from __future__ import annotations

import math
import random

from onefold.impact_analysis import Arm, ImpactMeasurements, MeasuredModel, compared_pairs, plan_arms
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.space import Choice, Float, Space

SPACE = Space(
    model=dict(
        filters=Choice(4, 8, 12, 16, 24, default=8),
        kernel=Choice(3, 5, 7, 9, default=5),
        hidden=Choice(32, 64, 128, 256, default=64),
        activation=Choice("relu", "tanh", "sigmoid", default="relu"),
        dropout=Float(0.0, 0.5, default=0.1),
    ),
    training=dict(
        batch_size=Choice(32, 64, 128, 256, 512, 1024, default=128),
        optimizer=Choice("adam", "sgd", "rmsprop", default="adam"),
        lr=Float(1e-4, 1e-1, log=True, default=1e-3),
        momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
    ),
)
EFFECTS = {
    "accuracy": {"lr", "optimizer", "batch_size", "momentum"},
    "latency_s": {"filters", "kernel", "hidden"},
    "size_bytes": {"filters", "kernel", "hidden"},
    "flops": {"filters", "kernel", "hidden"},
}
IMAGE_SIDE = 28


def simulated_impact(*, trials: int = 30, best: int = 10, seed: int = 0, null: bool = True) -> ImpactMeasurements:
    """Return the measurements of a study; with `null`, no hyperparameter has an effect on anything."""
    plan = plan_arms(SPACE, trials, seed=seed)
    rng = random.Random(f"{seed}/{null}")
    scores, models = {}, {}
    for trial, config in enumerate(plan.configs):
        expected = 0.85 - (0.0 if null else _loss_of_accuracy(config))
        plain = {"accuracy": expected + rng.gauss(0, 0.01), **(_noise(rng) if null else _costs(config, rng))}
        compressed = {"accuracy": 0.98 * (expected + rng.gauss(0, 0.01)), "flops": plain["flops"]}
        compressed |= {"size_bytes": plain["size_bytes"] / 4, "latency_s": 0.7 * plain["latency_s"] * _jitter(rng)}
        scores[trial] = plain["accuracy"] - 0.1 + rng.gauss(0, 0.01)  # after a short training
        models[trial] = MeasuredModel(trial, config, plain["accuracy"] + rng.gauss(0, 0.002), plain, compressed)
    chosen = {arm.name: _best(arm, scores, models, best) for arm in plan.arms}
    ranking = sorted(scores, key=lambda trial: -scores[trial])
    pairs = {arm.name: compared_pairs(arm, ranking, best) for arm in plan.arms}
    compared = {trial for group in chosen.values() for trial in group}
    compared |= {trial for group in pairs.values() for pair in group for trial in pair}
    measured = compared | set(plan.arms[0].members)
    return ImpactMeasurements(
        workload="simulated",
        metric="accuracy",
        higher_is_better=True,
        space=SPACE,
        arms=plan.arms,
        best=chosen,
        configs=dict(enumerate(plan.configs)),
        scores=scores,
        models={trial: _measured(models[trial], trial in compared) for trial in sorted(measured)},
        device="none",
        recipe="simulated",
        pairs=pairs,
    )


def has_effect(arm: Arm, name: str) -> bool:
    """Return whether a hyperparameter that an arm fixes affects a property, in a study that is not null."""
    return bool(EFFECTS[name] & set(arm.fixed))


def _jitter(rng: random.Random) -> float:
    """Return the factor by which a measured time is off."""
    return math.exp(rng.gauss(0, 0.02))


def _noise(rng: random.Random) -> Metrics:
    return {name: math.exp(rng.gauss(0, 0.5)) for name in ("latency_s", "size_bytes", "flops")}


def _costs(config: Config, rng: random.Random) -> Metrics:
    """Return the costs of LeNet with these sizes."""
    first = IMAGE_SIDE - config.kernel + 1
    second = first // 2 - config.kernel + 1
    inputs = 2 * config.filters * max(1, second // 2) ** 2
    kernels = config.kernel**2 * config.filters
    parameters = kernels + 2 * kernels * config.filters + inputs * config.hidden + 10 * config.hidden
    flops = 2.0 * (kernels * first**2 + 2 * kernels * config.filters * max(1, second) ** 2 + inputs * config.hidden)
    return {
        "latency_s": 1e-5 + 1e-10 * flops * _jitter(rng),
        "size_bytes": 4.0 * parameters,
        "flops": flops,
    }


def _loss_of_accuracy(config: Config) -> float:
    away = abs(math.log10(config.lr) - (-1.5 if config.optimizer == "sgd" else -3))
    slow = 0.05 * (1 - config.momentum) if "momentum" in config else 0.0
    return 0.06 * away + slow + 0.02 * math.log2(config.batch_size / 32) / 5


def _best(arm: Arm, scores: dict[int, float], models: dict[int, MeasuredModel], count: int) -> tuple[int, ...]:
    """Return the trials of an arm that are best after the short training, ranked by their final scores."""
    promoted = sorted(arm.members, key=lambda trial: -scores[trial])[:count]
    return tuple(sorted(promoted, key=lambda trial: -models[trial].score))


def _measured(model: MeasuredModel, is_compressed: bool) -> MeasuredModel:
    return MeasuredModel(model.trial, model.config, model.score, model.plain, model.compressed if is_compressed else {})
