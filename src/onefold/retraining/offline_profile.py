"""The profile of a model for later retrainings, measured where it was trained.

A short retraining on a few samples with a synthetic distribution shift runs every plan for some micro-windows in turn.
A device begins with the plans that gained most. Memory measurements are used on the same kind of machine only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from onefold.retraining.allocator import existing_objects_frozen
from onefold.retraining.controller import RetrainingController
from onefold.retraining.identity import machine_description, network_signature
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import monitor_for
from onefold.retraining.options import OPTIMIZERS
from onefold.retraining.rule_file import read_rules
from onefold.retraining.samples import split_new_data
from onefold.retraining.strategy import GainStrategy
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import DatasetError, InputError, ModelError
from onefold.vocabulary.records import Config, to_json
from onefold.vocabulary.retraining import MemoryLesson, RetrainingLimits, RetrainingPlan
from onefold.vocabulary.typed_json import checked_from_json
from onefold.vocabulary.workload import Data, Workload

VERSION = 1
MAX_BYTES = 1_000_000
SCALE, NOISE = 0.7, 0.3  # of the shift: contrast, and noise in standard deviations of the inputs
VALIDATION_SHARE = 0.5
PROFILED_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class OfflineProfile:
    """What the plans of a model were measured to need and to gain."""

    lessons: tuple[MemoryLesson, ...]
    version: int = VERSION


class RoundRobin(GainStrategy):
    """Give every plan its micro-windows in turn."""

    name = "profile"

    def next_plan(self, elapsed_share: float) -> RetrainingPlan:  # noqa: ARG002
        return min((estimate.plan for estimate in self.search.estimates), key=self.search.micro_windows)


def profile_offline(
    network: nn.Module, batch: Sequence[Tensor], workload: Workload, config: Config, seconds: float
) -> OfflineProfile | None:
    """Profile a network, whose weights stay as they are, with a batch of samples, targets last.

    Returns None if the time or the memory is too short for it, or the samples do not suit a retraining.
    """
    *inputs, targets = batch
    arrays = (*(shifted(values) for values in inputs), targets)
    half = round(VALIDATION_SHARE * len(targets))
    given = {name: value.clone() for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    device = torch.device("cpu")
    rules = read_rules()
    strategy = RoundRobin(rules, alpha=1.0)
    try:
        data = split_new_data(
            Data(tuple(part[half:] for part in arrays), tuple(part[:half] for part in arrays)), device
        )
        controller = RetrainingController(
            RetrainingJob(
                network, data, RetrainingLimits(monitor_for(device, None).limit(), seconds), strategy, rules,
                workload=workload, config=config, machine=machine_description(device),
                signature=network_signature(network),
            )
        )  # fmt: skip
        with existing_objects_frozen():
            controller.run()
    except (InputError, DatasetError):
        return None
    finally:
        with torch.no_grad():
            network.load_state_dict(given, strict=False)
    gains = strategy.search.relative_gains()
    lessons = [
        replace(lesson, gain_per_s=gains.get(lesson.plan)) for lesson in controller.lessons if lesson.plan in gains
    ]
    return OfflineProfile(tuple(lessons)) if lessons else None


def shifted(values: Tensor) -> Tensor:
    """Return inputs with less contrast and with noise; tokens and other integers as they are."""
    if not values.is_floating_point():
        return values
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0), dtype=values.dtype)
    return SCALE * values + NOISE * float(values.std()) * noise


def write_profile(profile: OfflineProfile, path: Path) -> None:
    """Write a profile as JSON."""
    path.write_text(json.dumps(to_json(profile), indent=1) + "\n", encoding="utf-8")


def read_profile(path: Path) -> OfflineProfile:
    """Read a profile; raises ModelError if the file is none. One of a later version is empty."""
    try:
        content = read_json(path, MAX_BYTES)
        if isinstance(content, dict) and isinstance(content.get("version"), int) and content["version"] > VERSION:
            return OfflineProfile(())
        profile = checked_from_json(OfflineProfile, content)
        for lesson in profile.lessons:
            _check(lesson)
        return profile
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}; write or copy the folder again") from error


def _check(lesson: MemoryLesson) -> None:
    """Raise ValueError for numbers that no retraining measures: the file may come from elsewhere."""
    plan = lesson.plan
    counts = (plan.batch_size, plan.accumulation, plan.segments, lesson.predicted_bytes, lesson.measured_bytes)
    if any(isinstance(count, bool) or not 1 <= count < 2**60 for count in counts):
        raise ValueError("a batch size, a number of segments or a size of memory is not positive")
    if not (0 < plan.lr < math.inf and 0 <= plan.freeze_rate <= 1 and plan.optimizer in OPTIMIZERS):
        raise ValueError(f"the plan {plan} is not one of a retraining")
    if lesson.gain_per_s is not None and not math.isfinite(lesson.gain_per_s):
        raise ValueError("a gain is not finite")
