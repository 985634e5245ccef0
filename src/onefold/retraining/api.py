"""A deployed model and new data -> a better model, within a memory limit and a time window.

better = retrain("deploy/", "new/", memory="500MB", window="10m")
better.summary.before, better.summary.after, better.network

A model's folder is changed in place, and only when the new model is better; the one before stays in `previous/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.device.catalogue import HOST
from onefold.device.catalogue import device as known_device
from onefold.retraining.allocator import request_huge_pages
from onefold.serving import deploy
from onefold.store.home import Home
from onefold.training.model_folder import CARD, WEIGHTS
from onefold.vocabulary.errors import InputError, OnefoldError, StoreError
from onefold.vocabulary.quantities import parse_bytes, parse_seconds
from onefold.vocabulary.records import Config, to_json
from onefold.vocabulary.retraining import DEFAULT_ALPHA, MemoryLesson, PlanEstimate, RetrainingLimits, RetrainingSummary
from onefold.vocabulary.workload import Data, Workload

if TYPE_CHECKING:
    from onefold.retraining.controller import RetrainingController
    from onefold.retraining.job import RetrainingEvent

PREVIOUS = "previous"
REPORT = "retraining.html"
EXPORT_BYTES, EXPORT_S = 60_000_000, 2.5  # to write the model anew as it is served
SAVE_S = 1.0  # to write weights and the report


@dataclass(frozen=True)
class RetrainingResult:
    """What a retraining hands back."""

    network: Any  # with the new weights; with the given ones where nothing was better
    summary: RetrainingSummary
    folder: Path | None = None  # where it was saved
    report: Path | None = None

    def save(self, folder: str | Path) -> Path:
        """Writes the weights and the report into a folder."""
        import torch

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        torch.save(self.network.state_dict(), target / WEIGHTS)
        _write_report(target, self.summary)
        return target


def retrain(
    model: Any,
    data: Any,
    *,
    memory: str | float | None = None,
    window: str | float = "10m",
    device: str = HOST,
    workload: Workload | None = None,
    config: Config | None = None,
    strategy: str = "onefold",
    rules: str | Path | None = None,
    alpha: float | str = DEFAULT_ALPHA,
    optimizer: str = "adam",
    metric: str | None = None,
    save: str | Path | None = None,
    home: str | Path | None = None,
    seed: int = 0,
    began: float | None = None,
    tell: Callable[[RetrainingEvent], None] = lambda _: None,
) -> RetrainingResult:
    """Retrains a model on new data and hands back the better one.

    `model` is a torch module, or a folder that `--save` or `Result.save` wrote. `data` is onefold.Data, a tuple of
    arrays with the targets last, or a folder of new data. `memory` limits the peak of the whole process, on a GPU that
    of the GPU's memory; without it, what is free. `device` is `host`, `cuda`, or one of the catalogue, whose cores and
    memory are then the limits. `alpha` weighs gain against speed; "auto" finds it by Bayesian optimisation.
    Raises InputError, and leaves the model as it was, when the limits cannot be kept.
    """
    asked = _Asked(
        model, data, memory=memory, window=window, device=device, workload=workload, config=config, strategy=strategy,
        rules=rules, alpha=alpha, optimizer=optimizer, metric=metric, save=save, home=home, seed=seed, began=began,
        tell=tell,
    )  # fmt: skip
    work = asked.open()
    summary = work.run()
    better = asked.hand_over(summary, work.job.network)
    asked.remember(work.learned)
    return better


def plan_retraining(model: Any, data: Any, **options: Any) -> tuple[tuple[PlanEstimate, ...], RetrainingLimits]:
    """The feasible plans, without retraining anything; takes what `retrain` takes."""
    work = _Asked(model, data, **options).open()
    return work.plan_only(), work.job.limits


@dataclass
class _Asked:
    """What was asked for, checked and opened."""

    model: Any
    data: Any
    memory: str | float | None = None
    window: str | float = "10m"
    device: str = HOST
    workload: Workload | None = None
    config: Config | None = None
    strategy: str = "onefold"
    rules: str | Path | None = None
    alpha: float | str = DEFAULT_ALPHA
    optimizer: str = "adam"
    metric: str | None = None
    save: str | Path | None = None
    home: str | Path | None = None
    seed: int = 0
    began: float | None = None
    tell: Callable[[RetrainingEvent], None] = lambda _: None

    def open(self) -> RetrainingController:
        """All that is needed, or the first mistake."""
        began = time.monotonic() if self.began is None else self.began
        request_huge_pages()
        from onefold.retraining.controller import RetrainingController
        from onefold.retraining.job import RetrainingJob
        from onefold.retraining.memory_model import STATES
        from onefold.retraining.rules import read_rules
        from onefold.retraining.samples import split_new_data
        from onefold.retraining.strategy import plan_strategy

        self.source = Path(self.model) if isinstance(self.model, (str, Path)) else None
        if self.save is not None and Path(self.save).is_file():
            raise InputError(f"{self.save} is a file; give a folder to save the model in")
        accelerator, most = self._place()
        limits = RetrainingLimits(self._memory(accelerator, most), parse_seconds(self.window))
        limits.check()
        if self.optimizer not in STATES:
            raise InputError(f"the optimizer is adam or sgd, but got {self.optimizer!r}")
        alpha = self._alpha()
        rules = read_rules(self.rules)
        how = plan_strategy(self.strategy, rules, alpha, self.seed)
        network, workload, config, name = self._opened()
        network = network.to(accelerator)
        self.signature = _signature(network)
        self.machine = _machine(accelerator)
        return RetrainingController(
            RetrainingJob(
                network=network,
                data=split_new_data(self._data(), accelerator),
                limits=limits,
                strategy=how,
                rules=rules,
                workload=workload,
                config=config,
                name=name,
                device=self.device,
                machine=self.machine,
                signature=self.signature,
                lessons=self._lessons(),
                optimizer=self.optimizer,
                metric=self.metric,
                alpha=0.5 if alpha is None else alpha,
                seed=self.seed,
                began=began,
                afterwards_bytes=EXPORT_BYTES if self._is_served() else 0,
                afterwards_s=EXPORT_S if self._is_served() else SAVE_S if self.source or self.save else 0.0,
                tell=self.tell,
            )
        )

    def remember(self, lessons: Sequence[MemoryLesson]) -> None:
        """What plans really took, for later retrainings on this machine."""
        if not lessons:
            return
        with closing(Home(self.home).store()) as store, store.transaction():
            for lesson in lessons:
                store.save_lesson(lesson)

    def hand_over(self, summary: RetrainingSummary, network: Any) -> RetrainingResult:
        """Writes what is to be written."""
        target = Path(self.save) if self.save is not None else self.source
        if target is None:
            return RetrainingResult(network, summary)
        is_source = self.source is not None and target.resolve() == self.source.resolve()
        try:
            target.mkdir(parents=True, exist_ok=True)
            if self.source is not None and not is_source:
                for file in self.source.iterdir():
                    if file.is_file():
                        shutil.copy2(file, target)
            if summary.kept_new:
                _renew(target, network, summary, keep=is_source)
            report = _write_report(target, summary)
        except OSError as error:
            raise InputError(f"the model cannot be saved in {target}: {error.strerror or error}") from error
        return RetrainingResult(network, summary, target, report)

    def _place(self) -> tuple[Any, int | None]:
        """The accelerator, and what memory the device has where that is not this machine's."""
        import torch

        if self.device == HOST:
            return torch.device("cpu"), None
        if self.device.startswith("cuda"):
            if not torch.cuda.is_available():
                raise InputError("there is no GPU that torch can use here; leave --device out, or give a device's name")
            return torch.device(self.device), None
        found = known_device(self.device, Home(self.home).devices)
        torch.set_num_threads(max(1, min(found.cores, torch.get_num_threads())))
        return torch.device("cpu"), found.memory_bytes

    def _memory(self, accelerator: Any, most: int | None) -> int:
        from onefold.retraining.memory_monitor import monitor_for

        asked = parse_bytes(self.memory) if self.memory is not None else None
        limits = [one for one in (asked, most) if one is not None]
        return min(limits) if limits else monitor_for(accelerator, None).limit()

    def _is_served(self) -> bool:
        """Whether its folder has the form in which it is served."""
        return self.source is not None and (self.source / deploy.MODEL).is_file()

    def _alpha(self) -> float | None:
        if self.alpha == "auto":
            return None
        try:
            alpha = float(self.alpha)
        except ValueError:
            alpha = -1.0
        if not 0 <= alpha <= 1:
            raise InputError(
                f"alpha is a number from 0 (speed alone) to 1 (gain alone), or auto, but got {self.alpha!r}"
            )
        return alpha

    def _opened(self) -> tuple[Any, Workload, Config, str]:
        if self.source is None:
            name = type(self.model).__name__
            return self.model, self.workload or Workload(), self.config or Config(), name
        from onefold.training.trained_model import load_network

        network, workload, config = load_network(self.source, self.workload)
        return network, workload, config, self.source.name or str(self.source)

    def _data(self) -> Data:
        if isinstance(self.data, (str, Path)):
            from onefold.datasets.new_data import read_data

            return read_data(Path(self.data))
        return self.data if isinstance(self.data, Data) else Data(self.data)

    def _lessons(self) -> tuple[MemoryLesson, ...]:
        if not Home(self.home).has_store:
            return ()
        try:
            with closing(Home(self.home).store()) as store:
                return tuple(one for one in store.lessons(self.machine) if one.model == self.signature)
        except StoreError:
            raise
        except OnefoldError:
            return ()


def _signature(network: Any) -> str:
    """What its memory depends on: the names and shapes of its weights, and its modules."""
    shapes = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    return hashlib.sha256(repr((shapes, str(network))).encode()).hexdigest()[:16]


def _machine(accelerator: Any) -> str:
    import torch

    where = torch.cuda.get_device_name(accelerator) if accelerator.type == "cuda" else platform.machine()
    return f"{where}, {os.cpu_count()} cores, {platform.system()}, torch {torch.__version__}"


def _renew(folder: Path, network: Any, summary: RetrainingSummary, *, keep: bool) -> None:
    """Puts the new model in the place of the old one; what stands there stays until the new files are whole."""
    import torch

    files = [WEIGHTS, CARD, deploy.MODEL, deploy.DEPLOYMENT]
    if keep:
        (folder / PREVIOUS).mkdir(exist_ok=True)
        for name in files:
            if (folder / name).is_file():
                shutil.copy2(folder / name, folder / PREVIOUS)
    fresh = folder / f"{WEIGHTS}.new"
    try:
        torch.save({name: value.cpu() for name, value in network.state_dict().items()}, fresh)
        if (folder / deploy.MODEL).is_file():
            _export(folder, network)
        for name in (CARD, deploy.DEPLOYMENT):
            if (folder / name).is_file():
                _note(folder / name, summary)
        fresh.replace(folder / WEIGHTS)
    finally:
        fresh.unlink(missing_ok=True)


def _note(file: Path, summary: RetrainingSummary) -> None:
    """Says in a model's card, or in its deployment, what retraining it came to."""
    content = json.loads(file.read_text(encoding="utf-8"))
    place = content.setdefault("model", {}) if file.name == deploy.DEPLOYMENT else content
    place["retrained"] = {
        "metric": summary.metric, "before": summary.before, "after": summary.after, "plan": to_json(summary.chosen)
    }  # fmt: skip
    whole = file.with_name(f"{file.name}.new")
    whole.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    whole.replace(file)


def _export(folder: Path, network: Any) -> None:
    """The network as it is served, checked against what torch answers."""
    import numpy as np

    from onefold.serving.export import check, export, samples_beside

    kept = samples_beside(folder / deploy.MODEL)
    with np.load(kept, allow_pickle=False) as samples:
        inputs = [samples[name] for name in samples.files]
    fresh = folder / "new.onnx"
    try:
        export(network, inputs, fresh)
        check(network, fresh)
        fresh.replace(folder / deploy.MODEL)
    finally:
        fresh.unlink(missing_ok=True)
        samples_beside(fresh).unlink(missing_ok=True)


def _write_report(folder: Path, summary: RetrainingSummary) -> Path:
    from onefold.report.retraining import RetrainingReport

    place, report = folder / REPORT, RetrainingReport(summary)
    place.write_text(report.as_html(), encoding="utf-8")
    (folder / place.with_suffix(".json").name).write_text(
        json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8"
    )
    return place
