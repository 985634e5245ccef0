"""Variants of trained trials: built by a study's workers, measured on a device.

The variants of each trial are recorded in a file, so that an interrupted run continues where it stopped. They are built
again once the trial has trained further or the request has changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onefold.compression.measurement import Repeated, measure_single_sample, to_variant
from onefold.compression.variant_builder import BuiltVariant
from onefold.device import Device, open_session, quiet_host, runtime
from onefold.engine import Call, CallFailed, CallFinished, Engine
from onefold.store.locks import MeasurementLock
from onefold.training.trainer import Tick, Trainer
from onefold.vocabulary.errors import DeviceUnavailable, ModelError
from onefold.vocabulary.records import Config, from_json, to_json
from onefold.vocabulary.variants import Recipe, Variant

TIMING_ROUNDS = 2  # fewer than for a single model, since there are many
MAX_ATTEMPTS = 3  # at a request whose worker dies
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class VariantRequest:
    """What a worker builds of a trial: the plain model and one variant per recipe."""

    trial: int
    config: Config
    weights: str
    recipes: tuple[Recipe, ...] = ()
    epochs: int = 1  # of fine-tuning
    max_metric_loss: float = float("inf")  # above which quantization-aware training follows
    skip_failures: bool = False  # leave out a variant that cannot be built
    on_test_data: bool = False  # score on the test data if there is any, and not on the validation data
    control: bool = False  # score also the uncompressed network, trained as long
    threads: int = 1


@dataclass
class TrialVariants:
    """Build and measure variants of trials. On exit it removes the model files and keeps the records."""

    engine: Engine
    device: Device
    host: Device
    measurement_lock: MeasurementLock
    folder: Path
    pairings: Path | None = None  # with the agents of devices
    plain_device: Device | None = None  # where the plain models are measured, if not where the variants are
    keep_files: bool = False  # until exit, so that one of them can be deployed
    on_progress: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005
    failures: dict[int, str] = field(default_factory=dict)  # by trial: why it has no variants

    def __enter__(self) -> TrialVariants:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def build(self, requests: Sequence[VariantRequest]) -> Mapping[int, tuple[Variant, ...]]:
        """Return the plain model and the variants by trial; trials that fail are listed in `failures`."""
        done = {request.trial: known for request in requests if (known := self._recorded(request)) is not None}
        waiting = [(request, 1) for request in requests if request.trial not in done]
        running: dict[int, tuple[VariantRequest, int]] = {}
        self.on_progress(len(done), len(requests))
        while waiting or running:
            while waiting and self.engine.free_slots:
                request, attempt = waiting.pop(0)
                call = Call(build_variants, (request, str(self._model_folder(request.trial))), cores=request.threads)
                running[self.engine.start(call)] = (request, attempt)
            for event in self.engine.wait(POLL_S):
                if not isinstance(event, (CallFinished, CallFailed)) or event.run not in running:
                    continue
                request, attempt = running.pop(event.run)
                if isinstance(event, CallFinished):
                    self._measure(request, event.value, done)
                elif event.retry and attempt < MAX_ATTEMPTS:
                    waiting.insert(0, (request, attempt + 1))
                else:
                    self.failures[request.trial] = event.failure.reason
                self.on_progress(len(done) + len(self.failures), len(requests))
        return {request.trial: done[request.trial] for request in requests if request.trial in done}

    def file(self, request: VariantRequest, recipe: Recipe) -> Path:
        """Return the model file of a variant; it is built again if it has been cleared."""
        name: str = self._read_record(request.trial)["files"][json.dumps(to_json(recipe))]
        path = self._model_folder(request.trial) / name
        if not path.is_file():
            self._record_file(request.trial).unlink()
            self.build([request])
        return path

    def clear(self) -> None:
        """Remove the model files and keep the records."""
        for folder in self.folder.glob("*/"):
            shutil.rmtree(folder, ignore_errors=True)

    def _measure(
        self, request: VariantRequest, built: Sequence[BuiltVariant], done: dict[int, tuple[Variant, ...]]
    ) -> None:
        try:
            files = [variant.file for variant in built]
            if self.plain_device is None:
                served = self._serve(self.device, files)
            else:
                served = {**self._serve(self.plain_device, files[:1]), **self._serve(self.device, files[1:])}
            variants = tuple(to_variant(variant, served[variant.file]) for variant in built)
            _check_finite(variants)
        except (ModelError, DeviceUnavailable) as error:
            self.failures[request.trial] = str(error)
            return
        names = {json.dumps(to_json(variant.recipe)): variant.file.name for variant in built}
        record = {"order": self._digest(request), "variants": to_json(variants), "files": names}
        temporary = self._record_file(request.trial).with_suffix(".new")
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        temporary.replace(self._record_file(request.trial))
        done[request.trial] = variants
        if not self.keep_files:
            shutil.rmtree(self._model_folder(request.trial), ignore_errors=True)

    def _serve(self, device: Device, files: Sequence[Path]) -> Mapping[Path, Repeated]:
        if not files:
            return {}
        # A new serving process per trial: one that has served other models retains some of their memory.
        with (
            open_session(device, self.host, pairings=self.pairings) as session,
            quiet_host(session, self.measurement_lock, self.engine.paused),
        ):
            return measure_single_sample(session, files, TIMING_ROUNDS)

    def _recorded(self, request: VariantRequest) -> tuple[Variant, ...] | None:
        record = self._read_record(request.trial)
        if record.get("order") != self._digest(request):
            return None
        return tuple(from_json(Variant, variant) for variant in record["variants"])

    def _read_record(self, trial: int) -> dict[str, Any]:
        try:
            content = json.loads(self._record_file(trial).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _digest(self, request: VariantRequest) -> str:
        """Hash everything that the variants of a trial depend on."""
        content = {name: value for name, value in to_json(request).items() if name not in ("weights", "threads")}
        devices = [self.device, self.plain_device or self.device, self.host]
        parts = [json.dumps(content, sort_keys=True), *(device.digest for device in devices), runtime()]
        digest = hashlib.sha256(Path(request.weights).read_bytes())
        digest.update("/".join(parts).encode())
        return digest.hexdigest()[:32]

    def _record_file(self, trial: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{trial:05d}.json"

    def _model_folder(self, trial: int) -> Path:
        return self.folder / f"{trial:05d}"


def _check_finite(variants: Sequence[Variant]) -> None:
    for variant in variants:
        for name, value in variant.metrics.items():
            if not math.isfinite(value):
                raise ModelError(f"{name} of the variant '{variant.recipe}' is {value}")


def build_variants(
    trainer: Trainer, request: VariantRequest, folder: str, *, tick: Tick
) -> Generator[None, None, list[BuiltVariant]]:
    """Build the variants of a trial in a worker process; their files go to `folder`."""
    import torch

    from onefold.compression.variant_builder import VariantBuilder

    yield from ()
    torch.set_num_threads(request.threads)
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    trained = trainer.open_model(request.config, request.weights, tick=tick)
    builder = VariantBuilder(
        trained,
        target,
        max_metric_loss=request.max_metric_loss,
        epochs=request.epochs,
        report=lambda _: tick(),
        score=trained.test if request.on_test_data and trained.has_test_data else trained.score,
    )
    plain, *variants = builder.build(
        request.recipes, skip_failures=request.skip_failures, with_controls=request.control
    )
    notes = tuple(f"{recipe}: {reason}" for recipe, reason in builder.failures.items())
    return [replace(plain, notes=(*plain.notes, *notes)), *variants]
