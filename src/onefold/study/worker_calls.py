"""The calls of a study that is to know how its models serve: export, then train."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from onefold.serving.export import Exported, check, export
from onefold.serving.signature import architecture
from onefold.training.assignment import Assignment
from onefold.vocabulary.knobs import Steered
from onefold.vocabulary.records import Config, Epoch

CALIBRATION = 128  # samples
Tick = Callable[[], None]


def visit(
    trainer: Any, group: Sequence[Assignment], model: str, *, tick: Tick
) -> Generator[Exported | Epoch | Steered, None, None]:
    """Exports the network of a trial that begins, reports that, and trains it."""
    work = group[0]
    network = trainer.workload.build(work.config)
    path = export(network, _samples(trainer), Path(model))
    check(network, path)  # now, and not when all training is done
    _quantise(trainer, work.config, path)
    yield Exported(work.trial, str(path), architecture(path).signature)
    yield from trainer.train(group, tick=tick)


def export_trained(
    trainer: Any,
    config: Config,
    weights: str,
    model: str,
    *,
    tick: Tick,  # noqa: ARG001 - it takes no time
) -> Generator[None, None, str]:
    """Exports a trained network and makes sure that it answers as PyTorch does; returns its signature."""
    from onefold.compression.in_loop import CompressedWorkload
    from onefold.training.checkpoint import weights_of

    yield from ()
    network = trainer.workload.build(config)
    network.load_state_dict(weights_of(Path(weights)))
    if isinstance(trainer.workload, CompressedWorkload):
        network = trainer.workload.variant(network, config)
    path = export(network, _samples(trainer), Path(model))
    check(network, path)
    _quantise(trainer, config, path)
    return architecture(path).signature


def _quantise(trainer: Any, config: Config, model: Path) -> None:
    """Makes the exported model the variant that its configuration asks for."""
    from onefold.compression import quantize_onnx, strip_metadata
    from onefold.compression.in_loop import CompressedWorkload, recipe_of

    if not isinstance(trainer.workload, CompressedWorkload):
        return
    precision = recipe_of(config).precision
    if precision != "fp32":
        whole = model.with_suffix(".new")
        samples = {f"input{at}": part.cpu().numpy() for at, part in enumerate(_samples(trainer, CALIBRATION))}
        quantize_onnx(model, whole, precision, samples)
        strip_metadata(whole)
        whole.replace(model)


def _samples(trainer: Any, count: int = 8) -> list[Any]:
    """The inputs of a few samples, without their targets."""
    batch = next(iter(trainer.splits.validation.batches(count)))
    return list(batch[:-1])
