"""What is run, which of its processes are disturbed, and how: one class for each kind of command.

A scenario starts its command, disturbs it or a process that it has started, starts it again if it was killed, and so on
until the command has ended by itself. Then decisions and results are compared with those of an undisturbed run.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import psutil

from killing.checks import Facts, facts, fault_of_folder, leftovers
from killing.command import Command
from killing.injection import is_supported, kill_at_call
from killing.progress import Outcome
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
from onefold.vocabulary.records import RungState

WORKLOAD = "onefold.testing.toy:Spirals"
TIMEOUT_S = 1200.0  # of a command that is left alone, also on a machine that does much else
CHILD_DISTURBANCES = 2  # in one life of a command: a call whose process dies three times fails for good
WORKER, RUNNER, QUEUED = "onefold.engine.worker", "onefold.device.runner", "onefold.study run"
WINDOWS = ("8s", "16s", "32s", "64s")  # of retraining
LATER_LIFE = 0.4  # what is left to do for a command that was killed before, about
INLINE = ParallelismOptions(engine="inline")


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when nobody disturbs it."""

    seconds: float
    calls: int  # that change files
    studies: dict[str, Facts]


class Scenario:
    """A command that is disturbed; subclasses say which."""

    name: ClassVar[str]
    child: ClassVar[tuple[str, str] | None] = None  # a process that it starts: what it is called, and its module
    child_share: ClassVar[float] = 0.5  # of disturbances that go to the child
    studies: ClassVar[tuple[str, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ()  # model folders, which must be whole at any time
    children_survive: ClassVar[bool] = False  # their command, and the next one waits for them

    def prepare(self, place: Path) -> None:
        """Write what the command needs."""

    def run(self, place: Path) -> object:
        """Run the command: in a forked process."""
        raise NotImplementedError

    def __init__(self, templates: Path) -> None:
        self.templates = templates

    def undisturbed(self, place: Path) -> Undisturbed:
        """Run the command once, and once more to count its system calls."""
        self._new_place(place / "timed")
        began = time.monotonic()
        self._end(Command(lambda: self.run(place / "timed"), place / "timed"), place / "timed")
        seconds = time.monotonic() - began
        calls = 0
        if is_supported():
            self._new_place(place / "traced")
            command = Command(lambda: self.run(place / "traced"), place / "traced")
            calls = command.kill_at_call(None, before=True, timeout_s=TIMEOUT_S).calls
            self._end(command, place / "traced")
        return Undisturbed(seconds, calls, {name: facts(place / "timed" / "home", name) for name in self.studies})

    def _end(self, command: Command, place: Path) -> None:
        if not command.wait(TIMEOUT_S) or command.exit_code != 0:
            command.close()
            raise RuntimeError(f"{self.name} does not end undisturbed: {(place / 'log').read_text()[-2000:]}")
        command.close()

    def _new_place(self, place: Path) -> None:
        (place / "tmp").mkdir(parents=True)
        (place / "home").mkdir()
        self.prepare(place)

    def disturbed(self, place: Path, undisturbed: Undisturbed, seed: int, kills: int, stops: int) -> Outcome:
        """Run the command until it ends by itself, with at most so many kills and stops."""
        rng = random.Random(seed)
        outcome = Outcome(self.name, seed)
        began = time.monotonic()
        self._new_place(place)
        with ExitStack() as stack:
            commands: list[Command] = []  # whose processes may be left
            while not commands or commands[-1].exit_code == -signal.SIGKILL:
                commands.append(Command(lambda: self.run(place), place))
                stack.callback(commands[-1].close)
                self._disturb(commands[-1], place, undisturbed, outcome, rng, kills, stops)
                if not commands[-1].wait(TIMEOUT_S):
                    outcome.notes.append("the command did not end: " + self._last_words(place))
                    break
                if not self.children_survive:
                    self._check_processes(commands[-1], outcome)
                self._check_folders(place, outcome)
            for command in commands if self.children_survive else ():
                self._check_processes(command, outcome)
            if commands[-1].exit_code != 0:
                outcome.unfinished += 1
                outcome.notes.append(f"exit code {commands[-1].exit_code}: {self._last_words(place)}")
            self._compare(place, undisturbed, outcome)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _disturb(
        self,
        command: Command,
        place: Path,
        undisturbed: Undisturbed,
        outcome: Outcome,
        rng: random.Random,
        kills: int,
        stops: int,
    ) -> None:
        """Disturb one life of a command: the processes that it starts, then the command itself."""
        left = 1.0 if outcome.killed == 0 else LATER_LIFE  # of the work
        for turn in range(CHILD_DISTURBANCES + 1):
            kind = "kill" if outcome.killed < kills else ""
            if outcome.stopped < stops and (not kind or rng.random() < stops / (kills + stops)):
                kind = "stop"
            if not kind:
                return
            if self.child is not None and turn < CHILD_DISTURBANCES and rng.random() < self.child_share:
                if not self._disturb_child(command, place, undisturbed, outcome, rng, kind):
                    return
                continue
            at_call = kind == "kill" and is_supported() and rng.random() < 0.7
            if not at_call and command.wait(rng.uniform(0.0, left * undisturbed.seconds)):
                return
            if at_call:
                number, before = rng.randint(1, max(int(left * undisturbed.calls), 1)), rng.random() < 0.5
                trace = command.kill_at_call(number, before=before, timeout_s=undisturbed.seconds * 5 + 10)
                if trace.killed_at is not None:
                    outcome.count(kind, "command", _way(trace.killed_at))
            elif kind == "kill" and command.kill():
                outcome.count(kind, "command", "at a random moment")
            elif kind == "stop" and command.suspend(rng.choice((0.1, 1.0, 3.0, 6.0))):
                outcome.count(kind, "command", "at a random moment")
                continue
            return

    def _disturb_child(
        self, command: Command, place: Path, undisturbed: Undisturbed, outcome: Outcome, rng: random.Random, kind: str
    ) -> bool:
        """Disturb a process that the command has started; return whether the command goes on."""
        assert self.child is not None
        process, module = self.child
        if not self._may_disturb_child(place, outcome):
            return not command.wait(0.5)
        if command.wait(rng.uniform(0.0, undisturbed.seconds / 2)):
            return False
        while not (children := command.children(module)):
            if command.wait(0.05):
                return False
        with suppress(psutil.Error):
            child = rng.choice(children)
            if kind == "stop":
                child.suspend()
                outcome.count(kind, process, "at a random moment")
                if self.children_survive:  # nobody replaces them, as with Ctrl-Z
                    time.sleep(rng.choice((0.1, 1.0, 3.0)))
                    child.resume()
            elif is_supported() and rng.random() < 0.5:
                trace = kill_at_call(child.pid, rng.randint(1, 30), before=rng.random() < 0.5, timeout_s=4.0)
                if trace.killed_at is not None:
                    outcome.count(kind, process, _way(trace.killed_at))
            else:
                child.kill()
                outcome.count(kind, process, "at a random moment")
        return True

    def _may_disturb_child(self, place: Path, outcome: Outcome) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a further disturbance would not fail the present call for good."""
        for name in self.studies:
            with suppress(StudyNotFound), closing(Home(place / "home").store()) as store:
                rungs = [rung for trial in store.trials(name) for rung in trial.rungs]
                if any(rung.state is RungState.DECIDED and rung.attempts >= CHILD_DISTURBANCES for rung in rungs):
                    return False
        return True

    def _check_processes(self, command: Command, outcome: Outcome) -> None:
        """Check that a command that has ended left no process behind."""
        orphans = command.orphans()
        outcome.orphans += len(orphans)
        outcome.notes += [f"left: {line}" for line in orphans]

    def _check_folders(self, place: Path, outcome: Outcome) -> None:
        """Check that each model folder is one generation."""
        for folder in self.folders:
            fault = fault_of_folder(place / folder)
            if fault is not None:
                outcome.mixed += 1
                outcome.notes.append(fault)

    def _compare(self, place: Path, undisturbed: Undisturbed, outcome: Outcome) -> None:
        """Compare with the undisturbed run after the last command."""
        for name, expected in undisturbed.studies.items():
            try:
                found = facts(place / "home", name)
            except StudyNotFound:
                outcome.unfinished += 1
                outcome.notes.append(f"the study {name} was never stored")
                continue
            outcome.lost += found.lost(expected)
            outcome.twice += found.twice
            outcome.different += found.decisions != expected.decisions
            outcome.unfinished += not found.is_done
        outcome.unfinished += sum(not (place / folder).is_dir() for folder in self.folders)
        left = leftovers(place)
        outcome.orphans += len(left)
        outcome.notes += [f"left: {name}" for name in left]

    @staticmethod
    def _last_words(place: Path) -> str:
        return (place / "log").read_text(errors="replace")[-600:] if (place / "log").exists() else ""


def _way(killed_at: str) -> str:
    return "at a random moment" if killed_at == "at any point" else killed_at


def _study(place: Path, name: str, **options: Any) -> Study:
    """Return the study of this name, which is new or was begun by an earlier command."""
    home = place / "home"
    try:
        return Study.open(name, home=home)
    except StudyNotFound:
        return Study(WORKLOAD, home=home, name=name, knobs="off", seed=5, **options)


class InlineStudy(Scenario):
    """A study that trains in the process of its coordinator, and saves the winner where an earlier one lies."""

    name = "study"
    studies = ("s",)
    folders = ("home/studies/s/best", "saved")

    def prepare(self, place: Path) -> None:
        shutil.copytree(self.templates / "trained", place / "saved")

    def run(self, place: Path) -> object:
        study = _study(place, "s", budget=Budget(trials=8, max_epochs=4), parallelism=INLINE)
        return study.run().save(place / "saved")


class WorkerStudy(Scenario):
    """A study with two workers."""

    name = "study with workers"
    child, child_share = ("worker", WORKER), 0.75
    studies = ("s",)
    folders = ("home/studies/s/best",)

    def run(self, place: Path) -> object:
        parallelism = ParallelismOptions(parallel=2, threads=1)
        return _study(place, "s", budget=Budget(trials=12, max_epochs=16), parallelism=parallelism).run()


class ServedStudy(Scenario):
    """A study that measures its trials on this machine, and hands over a deployment folder."""

    name = "study with a device"
    child = ("measuring process", RUNNER)
    studies = ("s",)
    folders = ("home/studies/s/best",)

    def prepare(self, place: Path) -> None:
        shutil.copytree(self.templates / "devices", place / "home" / "devices")

    def run(self, place: Path) -> object:
        budget, serving = (
            Budget(trials=3, max_epochs=2),
            ServingOptions(space=ServingSpace((1, 4), (1,), ("all",), ("sequential",))),
        )
        return _study(place, "s", budget=budget, parallelism=INLINE, device="host", serving=serving).run()


class Measure(Scenario):
    """The measurement of an ONNX file."""

    name = "measure"
    child, child_share = ("measuring process", RUNNER), 0.8

    def prepare(self, place: Path) -> None:
        shutil.copytree(self.templates / "devices", place / "home" / "devices")

    def run(self, place: Path) -> object:
        return measure(self.templates / "served" / "model.onnx", device="host", home=place / "home")


class QueueOfStudies(Scenario):
    """A queue with two studies: the process that serves it and those that run the studies."""

    name = "queue"
    child = ("study of a queue", QUEUED)
    studies = ("q0", "q1")
    children_survive = True

    def prepare(self, place: Path) -> None:
        queue = Queue(Home(place / "home"))
        for name in self.studies:
            queue.submit(_study(place, name, budget=Budget(trials=4, max_epochs=4), parallelism=INLINE))

    def run(self, place: Path) -> object:
        return Queue(Home(place / "home")).run()

    def _may_disturb_child(self, place: Path, outcome: Outcome) -> bool:  # noqa: ARG002 - the signature of Scenario
        killed = sum(times for name, times in outcome.kills.items() if name.startswith("study of a queue"))
        return killed < CHILD_DISTURBANCES  # a study that dies three times without an epoch has failed


class Renewal(Scenario):
    """A command that renews a model folder."""

    folders = ("model",)

    def prepare(self, place: Path) -> None:
        shutil.copytree(self.templates / "devices", place / "home" / "devices")
        shutil.copytree(self.templates / "home" / "written", place / "home" / "written")
        shutil.copytree(self.templates / "served", place / "model")


class Retrain(Renewal):
    """A retraining in place."""

    name = "retrain"

    def run(self, place: Path) -> object:
        for window in WINDOWS:
            options = RetrainingOptions(home=place / "home")
            with suppress(InputError):  # on a busy machine, the shortest windows are too short
                return retrain(
                    place / "model", Data(train=spirals(200, 7)), memory="4GB", window=window, options=options
                )
        raise InputError("the model could not be retrained in any window")


class Compress(Renewal):
    """A compression that replaces the folder of an earlier one."""

    name = "compress"
    child, child_share = ("measuring process", RUNNER), 0.3

    def run(self, place: Path) -> object:
        source = self.templates / "served" / "model.onnx"
        recipe, options = Recipe(precision="int8-dynamic"), CompressOptions(epochs=1)
        return compress(source, recipe, options=options, home=place / "home", save=place / "model")


class Compile(Renewal):
    """A compilation of kernels into the folder of the model."""

    name = "compile"

    def run(self, place: Path) -> object:
        return compile(place / "model", budget=CompileBudget(candidates=4), home=place / "home")


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
