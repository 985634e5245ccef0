"""A command that is disturbed, and its comparison with an undisturbed run.

A scenario starts its command, disturbs it or a process that it has started, starts it again if it was killed, and so on
until the command has ended by itself. Then decisions and results are compared with those of an undisturbed run.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from fault_injection.checks import Facts, facts, fault_of_folder, leftovers
from fault_injection.command import Command
from fault_injection.outcomes import ScenarioOutcome
from fault_injection.syscall_kills import is_supported, kill_at_call
from onefold.study import Home
from onefold.vocabulary.errors import StudyNotFound
from onefold.vocabulary.records import RungState

TIMEOUT_S = 1200.0  # of a command that is not disturbed, also on a busy machine
MAX_CHILD_DISTURBANCES = 2  # in one life of a command: a call whose process dies three times fails for good
AT_RANDOM = "at a random moment"
REMAINING_WORK = 0.4  # estimated share of the work that is left after the first kill


@dataclass(frozen=True)
class Undisturbed:
    """The duration and the results of a command that is not disturbed."""

    seconds: float
    calls: int  # that change files
    studies: dict[str, Facts]


class Scenario:
    """A command that is disturbed; subclasses say which."""

    name: ClassVar[str]
    child: ClassVar[tuple[str, str] | None] = None  # a process that it starts: its label and its module
    child_share: ClassVar[float] = 0.5  # of disturbances that go to the child
    studies: ClassVar[tuple[str, ...]] = ()
    model_folders: ClassVar[tuple[str, ...]] = ()  # which must be consistent at any time
    children_survive: ClassVar[bool] = False  # the command; the next one waits for them

    def __init__(self, templates: Path) -> None:
        self.templates = templates

    def prepare(self, folder: Path) -> None:
        """Write what the command needs."""

    def run(self, folder: Path) -> object:
        """Run the command, in a forked process."""
        raise NotImplementedError

    def undisturbed(self, folder: Path) -> Undisturbed:
        """Run the command once, and once more to count its system calls."""
        self._create(folder / "timed")
        started = time.monotonic()
        self._finish(Command(lambda: self.run(folder / "timed"), folder / "timed"), folder / "timed")
        seconds = time.monotonic() - started
        calls = 0
        if is_supported():
            self._create(folder / "traced")
            command = Command(lambda: self.run(folder / "traced"), folder / "traced")
            calls = command.kill_at_call(None, before=True, timeout_s=TIMEOUT_S).calls
            self._finish(command, folder / "traced")
        return Undisturbed(seconds, calls, {name: facts(folder / "timed" / "home", name) for name in self.studies})

    def _finish(self, command: Command, folder: Path) -> None:
        """Wait until a command has ended. Raises RuntimeError if it fails."""
        if not command.wait(TIMEOUT_S) or command.exit_code != 0:
            command.close()
            raise RuntimeError(f"{self.name} does not end undisturbed: {(folder / 'log').read_text()[-2000:]}")
        command.close()

    def _create(self, folder: Path) -> None:
        """Create the folder of a command, with a home and with what it needs."""
        (folder / "tmp").mkdir(parents=True)
        (folder / "home").mkdir()
        self.prepare(folder)

    def disturbed(self, folder: Path, undisturbed: Undisturbed, seed: int, kills: int, stops: int) -> ScenarioOutcome:
        """Run the command until it ends by itself, with at most so many kills and stops."""
        rng = random.Random(seed)
        outcome = ScenarioOutcome(self.name, seed)
        started = time.monotonic()
        self._create(folder)
        with ExitStack() as stack:
            commands: list[Command] = []
            while not commands or commands[-1].exit_code == -signal.SIGKILL:
                commands.append(Command(lambda: self.run(folder), folder))
                stack.callback(commands[-1].close)
                self._disturb(commands[-1], folder, undisturbed, outcome, rng, kills, stops)
                if not commands[-1].wait(TIMEOUT_S):
                    outcome.notes.append("the command did not end: " + self._log_tail(folder))
                    break
                if not self.children_survive:
                    self._check_processes(commands[-1], outcome)
                self._check_folders(folder, outcome)
            for command in commands if self.children_survive else ():
                self._check_processes(command, outcome)
            if commands[-1].exit_code != 0:
                outcome.unfinished += 1
                outcome.notes.append(f"exit code {commands[-1].exit_code}: {self._log_tail(folder)}")
            self._compare(folder, undisturbed, outcome)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _disturb(
        self,
        command: Command,
        folder: Path,
        undisturbed: Undisturbed,
        outcome: ScenarioOutcome,
        rng: random.Random,
        kills: int,
        stops: int,
    ) -> None:
        """Disturb one life of a command: the processes that it starts, then the command itself."""
        remaining = 1.0 if outcome.killed == 0 else REMAINING_WORK
        for turn in range(MAX_CHILD_DISTURBANCES + 1):
            kind = "kill" if outcome.killed < kills else ""
            if outcome.stopped < stops and (not kind or rng.random() < stops / (kills + stops)):
                kind = "stop"
            if not kind:
                return
            if self.child is not None and turn < MAX_CHILD_DISTURBANCES and rng.random() < self.child_share:
                if not self._disturb_child(command, folder, undisturbed, outcome, rng, kind):
                    return
                continue
            at_call = kind == "kill" and is_supported() and rng.random() < 0.7
            if not at_call and command.wait(rng.uniform(0.0, remaining * undisturbed.seconds)):
                return
            if at_call:
                number, before = rng.randint(1, max(int(remaining * undisturbed.calls), 1)), rng.random() < 0.5
                trace = command.kill_at_call(number, before=before, timeout_s=undisturbed.seconds * 5 + 10)
                if trace.killed_at is not None:
                    outcome.count(kind, "command", _moment(trace.killed_at))
            elif kind == "kill" and command.kill():
                outcome.count(kind, "command", AT_RANDOM)
            elif kind == "stop" and command.suspend(rng.choice((0.1, 1.0, 3.0, 6.0))):
                outcome.count(kind, "command", AT_RANDOM)
                continue
            return

    def _disturb_child(
        self,
        command: Command,
        folder: Path,
        undisturbed: Undisturbed,
        outcome: ScenarioOutcome,
        rng: random.Random,
        kind: str,
    ) -> bool:
        """Disturb a process that the command has started; return whether the command goes on."""
        assert self.child is not None
        process, module = self.child
        if not self._may_disturb_child(folder, outcome):
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
                outcome.count(kind, process, AT_RANDOM)
                if self.children_survive:  # they are not replaced, as after Ctrl-Z
                    time.sleep(rng.choice((0.1, 1.0, 3.0)))
                    child.resume()
            elif is_supported() and rng.random() < 0.5:
                trace = kill_at_call(child.pid, rng.randint(1, 30), before=rng.random() < 0.5, timeout_s=4.0)
                if trace.killed_at is not None:
                    outcome.count(kind, process, _moment(trace.killed_at))
            else:
                child.kill()
                outcome.count(kind, process, AT_RANDOM)
        return True

    def _may_disturb_child(self, folder: Path, outcome: ScenarioOutcome) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a further disturbance would not fail the present call for good."""
        for name in self.studies:
            with suppress(StudyNotFound), closing(Home(folder / "home").store()) as store:
                rungs = [rung for trial in store.trials(name) for rung in trial.rungs]
                if any(rung.state is RungState.DECIDED and rung.attempts >= MAX_CHILD_DISTURBANCES for rung in rungs):
                    return False
        return True

    def _check_processes(self, command: Command, outcome: ScenarioOutcome) -> None:
        """Check that a command that has ended left no process behind."""
        orphans = command.orphans()
        outcome.orphans += len(orphans)
        outcome.notes += [f"left: {line}" for line in orphans]

    def _check_folders(self, folder: Path, outcome: ScenarioOutcome) -> None:
        """Check that each model folder is one generation."""
        for name in self.model_folders:
            fault = fault_of_folder(folder / name)
            if fault is not None:
                outcome.mixed += 1
                outcome.notes.append(fault)

    def _compare(self, folder: Path, undisturbed: Undisturbed, outcome: ScenarioOutcome) -> None:
        """Compare with the undisturbed run after the last command."""
        for name, expected in undisturbed.studies.items():
            try:
                actual = facts(folder / "home", name)
            except StudyNotFound:
                outcome.unfinished += 1
                outcome.notes.append(f"the study {name} was never stored")
                continue
            outcome.lost += actual.lost(expected)
            outcome.twice += actual.twice
            outcome.different += actual.decisions != expected.decisions
            outcome.unfinished += not actual.is_done
        outcome.unfinished += sum(not (folder / name).is_dir() for name in self.model_folders)
        files = leftovers(folder)
        outcome.orphans += len(files)
        outcome.notes += [f"left: {file}" for file in files]

    @staticmethod
    def _log_tail(folder: Path) -> str:
        return (folder / "log").read_text(errors="replace")[-600:] if (folder / "log").exists() else ""


def _moment(killed_at: str) -> str:
    return AT_RANDOM if killed_at == "at any point" else killed_at
