"""Predict the memory of a random plan for a network, then run three updates: `python random_plan.py WORKLOAD SEED`.

Prints the plan and its prediction as JSON. The high-water mark of the process is reset before the first update, so that
its value at the end is the measurement.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from typing import Any

from onefold.retraining import allocator

allocator.request_huge_pages()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from onefold.meter.memory import high_water_bytes, reset_high_water  # noqa: E402
from onefold.retraining.memory_monitor import ProcessMemory  # noqa: E402
from onefold.retraining.network_profile import NetworkProfile, profile_network  # noqa: E402
from onefold.retraining.samples import Samples  # noqa: E402
from onefold.retraining.stages import split_into_stages  # noqa: E402
from onefold.retraining.training_step import Stepper  # noqa: E402
from onefold.vocabulary.records import Config  # noqa: E402
from onefold.vocabulary.retraining import RetrainingPlan  # noqa: E402
from onefold.vocabulary.workload_reference import load  # noqa: E402

MAX_PLAN_BYTES = 3_000_000_000  # maximum predicted memory of a plan
TEXT_WORKLOAD, TEXT_LENGTH, VOCABULARY, TEXT_CLASSES = "newsgroups-lstm", 200, 20_000, 20
IMAGE_CLASSES = 10


@dataclass(frozen=True)
class RandomArray:
    """Random samples that are generated on access and not kept."""

    sample_shape: tuple[int, ...]
    bound: int  # integers below this; 0 for standard normal numbers

    def __getitem__(self, rows: Any) -> Any:
        rng, shape = np.random.default_rng(len(rows)), (len(rows), *self.sample_shape)
        return rng.integers(self.bound, size=shape) if self.bound else rng.standard_normal(shape, np.float32)


def random_settings(name: str, rng: random.Random) -> dict[str, Any]:
    """Draw the size of a network."""
    match name:
        case "cifar10":
            return {"depth": rng.choice((14, 20)), "width": rng.choice((16, 24))}
        case "cifar10-mobilenet":
            return {"width": rng.choice((0.5, 0.75, 1.0))}
        case "cifar10-vit":
            return {"width": rng.choice((64, 96, 128)), "depth": rng.randint(2, 8), "heads": rng.choice((2, 4))}
    return {
        "stride": round(2 ** rng.uniform(0, 5)), "embedding": rng.choice((16, 32, 64, 128)),
        "units": rng.choice((16, 32, 64, 128)), "bidirectional": rng.random() < 0.5,
    }  # fmt: skip


def random_plan(
    profile: NetworkProfile, layers: int, held_bytes: int, rng: random.Random
) -> tuple[RetrainingPlan, int]:
    """Draw a plan that is predicted to need at most MAX_PLAN_BYTES; return it with its prediction."""
    while True:
        plan = RetrainingPlan(
            batch_size=round(2 ** rng.uniform(0, 8)),
            accumulation=2,
            freeze_rate=rng.random(),
            segments=rng.randint(1, max(1, layers // 3)),
            optimizer=rng.choice(("adam", "sgd")),
        )
        predicted_bytes = held_bytes + profile.added_bytes(plan)
        if predicted_bytes <= MAX_PLAN_BYTES:
            return plan, predicted_bytes


def random_samples(name: str, *, channels_last: bool) -> Samples:
    """Return samples in the format of a workload."""
    is_text = name == TEXT_WORKLOAD
    inputs = RandomArray((TEXT_LENGTH,), VOCABULARY) if is_text else RandomArray((3, 32, 32), 0)
    targets = RandomArray((), TEXT_CLASSES if is_text else IMAGE_CLASSES)
    return Samples((inputs, targets), np.arange(256), torch.device("cpu"), channels_last=channels_last)


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    allocator.use_mode(allocator.SPARING)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    workload = load(name)
    settings = random_settings(name, rng)
    config = Config({**workload.space.default(), **settings})
    network = workload.build(config)
    has_convolutions = any(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    if has_convolutions:
        network.to(memory_format=torch.channels_last)  # as in a retraining
    samples = random_samples(name, channels_last=has_convolutions)

    def loss(outputs: Any, targets: Any) -> Any:
        return workload.loss(outputs, targets, config)

    batch = samples.batch(slice(0, 4))
    staged = split_into_stages(network, batch[:-1])
    profile = profile_network(staged, batch, loss)
    stepper = Stepper(staged, profile.trace, loss)
    allocator.release_free_memory()
    held_bytes = ProcessMemory().used()
    plan, predicted_bytes = random_plan(profile, staged.layers, held_bytes, rng)
    before_bytes = high_water_bytes()
    reset_high_water()
    stepper.use_plan(plan)
    for _ in range(3):
        batches = (samples.batch(slice(0, plan.batch_size)) for _ in range(plan.accumulation))
        stepper.update(batches, plan.effective_batch, plan.lr)
    row = {
        "model": f"{name} ({', '.join(f'{key} {value}' for key, value in settings.items())})",
        "batch_size": plan.batch_size, "freeze_rate": round(plan.freeze_rate, 3), "segments": plan.segments,
        "optimizer": plan.optimizer, "held_bytes": held_bytes, "before_bytes": before_bytes,
        "predicted_bytes": predicted_bytes,
    }  # fmt: skip
    print(json.dumps(row))


if __name__ == "__main__":
    main()
