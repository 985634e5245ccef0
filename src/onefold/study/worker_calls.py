"""The calls of studies that measure how their models serve: export, then train."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from onefold.serving.export import Exported
from onefold.serving.signature import architecture
from onefold.training.assignment import Assignment
from onefold.training.trainer import Tick, Trainer
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.records import Config, Epoch


def export_and_train(
    trainer: Trainer, group: Sequence[Assignment], model: str, *, tick: Tick
) -> Generator[Exported | Epoch | KnobRecord, None, None]:
    """Export the untrained network of a trial to the file `model`, report its architecture, and train it.

    `model` is relative to the folder of the study. The export comes first, since a network that cannot be served is
    not worth training.
    """
    path = trainer.export(group[0].config, model)
    yield Exported(group[0].trial, model, architecture(path).signature)
    yield from trainer.train(group, tick=tick)


def profile_retraining(
    trainer: Trainer, config: Config, weights: str, file: str, seconds: float, *, tick: Tick
) -> Generator[None, None, bool]:
    """Write the offline profile of a trained network, measured for so many seconds; return whether there is one."""
    from onefold.retraining.offline_profile import PROFILED_SAMPLES, profile_offline, write_profile  # imports torch

    yield from ()
    model = trainer.open_model(config, weights, tick=tick)
    batch = next(iter(model.splits.validation.share(0.0, at_least=PROFILED_SAMPLES).batches(PROFILED_SAMPLES)))
    if not isinstance(batch, (tuple, list)):
        return False
    profile = profile_offline(model.network, batch, model.workload, config, seconds)
    if profile is not None:
        write_profile(profile, Path(file))
    return profile is not None


def export_trained(
    trainer: Trainer,
    config: Config,
    weights: str,
    model: str,
    *,
    tick: Tick,  # noqa: ARG001 - it takes no time
) -> Generator[None, None, str]:
    """Export a trained network to the file `model` and return its signature; files are relative to the study."""
    yield from ()
    return architecture(trainer.export(config, model, weights)).signature
