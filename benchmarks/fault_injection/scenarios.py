"""The commands that are disturbed: one class for each kind."""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from fault_injection.command import Command
from fault_injection.outcomes import ScenarioOutcome
from fault_injection.scenario import MAX_CHILD_DISTURBANCES, TIMEOUT_S, Scenario
from onefold import (
    Budget,
    CompileBudget,
    CompressOptions,
    Data,
    ParallelismOptions,
    Recipe,
    RetrainingOptions,
    ServingOptions,
    Study,
    compile,
    compress,
    measure,
    retrain,
)
from onefold.serving.space import ServingSpace
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.testing.toy import spirals
from onefold.vocabulary.errors import InputError, StudyNotFound

WORKLOAD = "onefold.testing.toy:Spirals"
WORKER, RUNNER, QUEUED = "onefold.engine.worker", "onefold.device.runner", "onefold.study run"
WINDOWS = ("8s", "16s", "32s", "64s")  # of retraining
INLINE = ParallelismOptions(engine="inline")


def _study(folder: Path, name: str, **options: Any) -> Study:
    """Return the study of this name, which is new or was begun by an earlier command."""
    home = folder / "home"
    try:
        return Study.open(name, home=home)
    except StudyNotFound:
        return Study(WORKLOAD, home=home, name=name, knobs="off", seed=5, **options)


class InlineStudy(Scenario):
    """A study that trains in the process of its coordinator, and saves the winner where an earlier one lies."""

    name = "study"
    studies = ("s",)
    model_folders = ("home/studies/s/best", "saved")

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.templates / "trained", folder / "saved")

    def run(self, folder: Path) -> object:
        study = _study(folder, "s", budget=Budget(trials=8, max_epochs=4), parallelism=INLINE)
        return study.run().save(folder / "saved")


class WorkerStudy(Scenario):
    """A study with two workers."""

    name = "study with workers"
    child, child_share = ("worker", WORKER), 0.75
    studies = ("s",)
    model_folders = ("home/studies/s/best",)

    def run(self, folder: Path) -> object:
        parallelism = ParallelismOptions(parallel=2, threads=1)
        return _study(folder, "s", budget=Budget(trials=12, max_epochs=16), parallelism=parallelism).run()


class ServedStudy(Scenario):
    """A study that measures its trials on this machine, and hands over a deployment folder."""

    name = "study with a device"
    child = ("measuring process", RUNNER)
    studies = ("s",)
    model_folders = ("home/studies/s/best",)

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.templates / "devices", folder / "home" / "devices")

    def run(self, folder: Path) -> object:
        budget, serving = (
            Budget(trials=3, max_epochs=2),
            ServingOptions(space=ServingSpace((1, 4), (1,), ("all",), ("sequential",))),
        )
        return _study(folder, "s", budget=budget, parallelism=INLINE, device="host", serving=serving).run()


class Measure(Scenario):
    """The measurement of an ONNX file."""

    name = "measure"
    child, child_share = ("measuring process", RUNNER), 0.8

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.templates / "devices", folder / "home" / "devices")

    def run(self, folder: Path) -> object:
        return measure(self.templates / "served" / "model.onnx", device="host", home=folder / "home")


class QueueOfStudies(Scenario):
    """A queue with two studies: the process that serves it and those that run the studies."""

    name = "queue"
    child = ("study of a queue", QUEUED)
    studies = ("q0", "q1")
    children_survive = True

    def prepare(self, folder: Path) -> None:
        queue = Queue(Home(folder / "home"))
        for name in self.studies:
            queue.submit(_study(folder, name, budget=Budget(trials=4, max_epochs=4), parallelism=INLINE))

    def run(self, folder: Path) -> object:
        return Queue(Home(folder / "home")).run()

    def _may_disturb_child(self, folder: Path, outcome: ScenarioOutcome) -> bool:  # noqa: ARG002 - the signature of Scenario
        killed = sum(times for name, times in outcome.kills.items() if name.startswith("study of a queue"))
        return killed < MAX_CHILD_DISTURBANCES  # a study that dies three times without an epoch has failed


class Renewal(Scenario):
    """A command that renews a model folder."""

    model_folders = ("model",)

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.templates / "devices", folder / "home" / "devices")
        shutil.copytree(self.templates / "home" / "written", folder / "home" / "written")
        shutil.copytree(self.templates / "served", folder / "model")


class Retrain(Renewal):
    """A retraining in folder."""

    name = "retrain"

    def run(self, folder: Path) -> object:
        for window in WINDOWS:
            options = RetrainingOptions(home=folder / "home")
            with suppress(InputError):  # on a busy machine, the shortest windows are too short
                return retrain(
                    folder / "model", Data(train=spirals(200, 7)), memory="4GB", window=window, options=options
                )
        raise InputError("the model could not be retrained in any window")


class Compress(Renewal):
    """A compression that replaces the folder of an earlier one."""

    name = "compress"
    child, child_share = ("measuring process", RUNNER), 0.3

    def run(self, folder: Path) -> object:
        source = self.templates / "served" / "model.onnx"
        recipe, options = Recipe(precision="int8-dynamic"), CompressOptions(epochs=1)
        return compress(source, recipe, options=options, home=folder / "home", save=folder / "model")


class Compile(Renewal):
    """A compilation of kernels into the folder of the model."""

    name = "compile"

    def run(self, folder: Path) -> object:
        return compile(folder / "model", budget=CompileBudget(candidates=4), home=folder / "home")


class Templates:
    """Folders that scenarios start from: devices, a trained and a served model, and the home that wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def path(self) -> Path:
        """Write them, once."""
        self.folder.mkdir()
        command = Command(self._write, self.folder)
        if not command.wait(TIMEOUT_S) or command.exit_code != 0:
            raise RuntimeError((self.folder / "log").read_text())
        command.close()
        return self.folder

    def _write(self) -> None:
        budget = Budget(trials=2, max_epochs=2)
        Study(WORKLOAD, home=self.folder / "home", budget=budget, knobs="off", parallelism=INLINE).run().save(
            self.folder / "trained"
        )
        result = Study(
            WORKLOAD, home=self.folder / "home", budget=budget, knobs="off", parallelism=INLINE, device="host"
        ).run()
        result.save(self.folder / "served")
        shutil.copytree(self.folder / "home" / "devices", self.folder / "devices")


KINDS: dict[type[Scenario], float] = {  # with the share of kills
    InlineStudy: 0.35,
    WorkerStudy: 0.15,
    ServedStudy: 0.13,
    Measure: 0.15,
    QueueOfStudies: 0.07,
    Retrain: 0.06,
    Compress: 0.07,
    Compile: 0.02,
}
