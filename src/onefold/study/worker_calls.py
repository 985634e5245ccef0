"""The calls of a study's workers that combine training with exports, measurements and compression."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold import meter
from onefold.processes import scratch_folder
from onefold.serving.export import Exported
from onefold.serving.signature import architecture
from onefold.training.assignment import Assignment
from onefold.training.metrics import cost_metrics
from onefold.training.trainer import Tick, Trainer
from onefold.training.trial_files import best_weights_file, fork_file
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.forks import Fork, ForkOptions, PackedSize
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.records import Config, Epoch, Measurement


def export_and_train(
    trainer: Trainer, group: Sequence[Assignment], model: str, *, tick: Tick
) -> Generator[Exported | Epoch | KnobRecord, None, None]:
    """Export the untrained network of a trial to the file `model`, report its architecture, and train it.

    `model` is relative to the folder of the study. The export comes first, since a network that cannot be served is
    not worth training.
    """
    path = trainer.export(group[0].config, model)
    written = str(Path(model).with_suffix(path.suffix))  # no ONNX file if the network cannot be exported
    yield Exported(group[0].trial, written, architecture(path).signature)
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


def train_and_pack(
    trainer: Trainer, group: Sequence[Assignment], model: str | None, folder: str, *, tick: Tick
) -> Generator[Exported | Epoch | KnobRecord | PackedSize, None, None]:
    """Train a trial, and report the size of its packed model; with `model`, export its architecture first.

    `folder` is that of the study.
    """
    if model is None:
        yield from trainer.train(group, tick=tick)
    else:
        yield from export_and_train(trainer, group, model, tick=tick)
    from onefold.compression.forks import packed_bytes  # imports torch

    for work in group:
        weights = best_weights_file(Path(folder), work.trial, work.rung)
        if weights is not None:
            with scratch_folder() as scratch:
                exported = trainer.export(work.config, str(scratch / "model.onnx"), str(weights))
                yield PackedSize(work.trial, packed_bytes(exported))


@dataclass(frozen=True, slots=True)
class ForkAssignment:
    """Build a fork from the best weights of its parent up to a rung."""

    trial: int
    rung: int
    fork: Fork
    parent_rung: int
    config: Config  # of the parent
    parent_epochs: int
    epochs: int  # of the fork alone
    spent: Measurement  # by the parent
    threads: int
    options: ForkOptions
    is_measured: bool  # whether its architecture is measured on devices


def build_fork(
    trainer: Trainer, work: ForkAssignment, folder: str, *, tick: Tick
) -> Generator[Epoch | Exported, None, None]:
    """Write the file of a fork into the folder of the study, and report its metrics as one epoch."""
    import torch

    from onefold.compression import forks

    torch.set_num_threads(work.threads)
    weights = best_weights_file(Path(folder), work.fork.parent, work.parent_rung)
    if weights is None:
        raise ModelError(f"trial {work.fork.parent} cannot be compressed: its weights are missing")
    file = fork_file(Path(folder), work.trial, work.rung)
    with meter.choose("cpu").window() as window:
        trained = trainer.open_model(work.config, str(weights), tick=tick)
        metrics = forks.build_fork(trained, work.fork.recipe, file, epochs=work.epochs, options=work.options)
    cost = window.measurement
    metrics = {**metrics, **cost_metrics(work.spent + cost)}
    yield Epoch(work.trial, work.parent_epochs + work.epochs, work.rung, metrics, cost)
    if work.is_measured:
        yield Exported(work.trial, str(file.relative_to(folder)), architecture(file).signature)


def check_class_scores(trainer: Trainer, config: Config, *, tick: Tick) -> Generator[None, None, None]:
    """Raise ModelError unless the network of a configuration is a classifier, whose forks can be distilled."""
    from onefold.training import distillation  # imports torch

    yield from ()
    distillation.check_class_scores(trainer.open_model(config, tick=tick))


def describe_fork(
    trainer: Trainer, fork: Fork, config: Config, model: str, *, tick: Tick
) -> Generator[None, None, dict[str, Any]]:
    """Return what the card of a fork says of its file; `config` is that of the parent."""
    from onefold.compression.forks import card_of_fork  # imports torch

    yield from ()
    return dict(card_of_fork(trainer.open_model(config, tick=tick), fork.recipe, Path(model)))


def signature_of(trainer: Trainer, model: str, *, tick: Tick) -> Generator[None, None, str]:  # noqa: ARG001 - reads a file
    """Return the signature of the architecture in an ONNX file."""
    yield from ()
    return architecture(Path(model)).signature
