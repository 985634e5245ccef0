"""Warm processes that compile and time candidates. One that crashes or hangs is a failed candidate and nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onefold.kernels.targets import Target
from onefold.kernels.toolchain import schedules
from onefold.kernels.worker import Arguments
from onefold.processes import Worker, describe_exit
from onefold.vocabulary.errors import EngineError, InputError, ModelError
from onefold.vocabulary.kernels import CandidateFailure

START_S = 120.0
BUILD_S, RUN_S = 20.0, 10.0  # after which a candidate has failed
REPEATS, LEAST_MS = 3, 8  # of timing a candidate
CLOCK = 2  # the way to time candidates: latencies of another one are not those of this one
SAME = 1e-3  # answers differ by no more than this share of their length
# Threads of numpy's libraries go on spinning for tens of milliseconds after they are used. Beside two threads of a
# candidate on two cores they made its latency up to forty times as long.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate."""

    latency_s: float | None
    failure: CandidateFailure | None = None
    said: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    build_j: float | None = None  # of the process that built it, where nobody else reads the machine's counters
    run_j: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker said."""

    answer: Any = None
    complaint: str = ""
    seconds: float = 0.0
    joules: float | None = None
    ended: CandidateFailure | None = None  # where the worker did not survive it


@dataclass(frozen=True, slots=True)
class Built:
    """A library, or why there is none."""

    file: Path
    reply: Reply


class BenchProcess:
    """A process that compiles or times, started when it is first needed, and again after it has died."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.worker: Worker | None = None

    def ask(self, name: str, *arguments: Any, within_s: float, late: CandidateFailure) -> Reply:
        """Call a function of `kernels/worker.py`; a call that takes longer than `within_s` fails with `late`."""
        worker = self._started()
        try:
            return Reply(*worker.ask((name, arguments), within_s))
        except TimeoutError:
            self.close()
            return Reply(complaint=f"{name} took more than {within_s:g} s", seconds=within_s, ended=late)
        except (EOFError, OSError):
            end = describe_exit(worker.exit_code())
            self.close()
            return Reply(complaint=f"the process {end}", ended=CandidateFailure.CRASH)

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self.worker is not None:
            self.worker.kill()
        self.worker = None

    def _started(self) -> Worker:
        if self.worker is not None:
            return self.worker
        try:
            self.worker = Worker("onefold.kernels.worker", environment={**ALONE, **self.environment}, silent=True)
            self.worker.receive(START_S)
        except (EOFError, OSError) as error:
            self.close()
            raise EngineError("a process that compiles kernels cannot be started; is apache-tvm sound?") from error
        return self.worker


class Bench:
    """Builders side by side, and one runner that has the machine for itself. `with bench:` closes it."""

    def __init__(self, target: Target, *, builders: int = 2, remote: str | None = None) -> None:
        self.target, self.remote = target, remote
        if remote is not None and not (remote.rpartition(":")[0] and remote.rpartition(":")[2].isdigit()):
            raise InputError(f"a TVM server is given as HOST:PORT, but got {remote!r}")
        self._builders = [BenchProcess({"TVM_NUM_THREADS": "1"}) for _ in range(builders)]
        self._runner = BenchProcess({"TVM_NUM_THREADS": str(target.cores)})
        self._workers = (*self._builders, self._runner)  # also those that are at work
        self._pool = ThreadPoolExecutor(builders)
        self._folder = tempfile.TemporaryDirectory(prefix="onefold-kernels-")
        self._answers: dict[str, list[float]] = {}
        self._count = 0

    @property
    def can_run(self) -> bool:
        """Whether what it builds can be run: here, or over there."""
        return self.target.is_here or self.remote is not None

    def build(self, modules: Sequence[Any]) -> list[Built]:
        """Compiles loops, several side by side."""

        def build(file: Path, module: Any) -> Built:
            worker = self._builders.pop()
            try:
                order = (module, self.target.about, str(file))
                return Built(file, worker.ask("build", *order, within_s=BUILD_S, late=CandidateFailure.SLOW_BUILD))
            finally:
                self._builders.append(worker)

        return list(self._pool.map(build, [self._file() for _ in modules], modules))

    def knows(self, operator: str) -> bool:
        """Whether it has what this operator answers, to compare with."""
        return operator in self._answers

    def take_as_right(self, operator: str, module: Any, built: Built) -> Outcome:
        """Remembers what the plain loops of an operator answer."""
        outcome, self._answers[operator] = self._timed(built, _arguments(module), None)
        return outcome

    def run(self, operator: str, module: Any, built: Built) -> Outcome:
        """Times an implementation, and compares what it answers."""
        return self._timed(built, _arguments(module), self._answers.get(operator))[0]

    def _file(self) -> Path:
        self._count += 1
        return Path(self._folder.name) / f"{self._count:06}.{'so' if self.target.is_here else 'tar'}"

    def time(self, file: Path, arguments: Arguments) -> Reply:
        """Runs a library, which is then gone."""
        order = (str(file), arguments, REPEATS, LEAST_MS, self.remote)
        ran = self._runner.ask("run", *order, within_s=RUN_S, late=CandidateFailure.SLOW_RUN)
        file.unlink(missing_ok=True)
        return ran

    def _timed(self, built: Built, arguments: Arguments, expected: list[float] | None) -> tuple[Outcome, list[float]]:
        done = built.reply
        if done.complaint:
            failure = done.ended or CandidateFailure.INVALID
            return Outcome(None, failure, done.complaint, done.seconds, 0.0, done.joules), []
        ran = self.time(built.file, arguments)

        def outcome(latency_s: float | None, failure: CandidateFailure | None = None, said: str = "") -> Outcome:
            return Outcome(latency_s, failure, said, done.seconds, ran.seconds, done.joules, ran.joules)

        if ran.complaint:
            return outcome(None, ran.ended or CandidateFailure.CRASH, ran.complaint), []
        answer = ran.answer["answer"]
        if expected and not _same(answer, expected):
            return outcome(None, CandidateFailure.WRONG, "its answer is not that of the operator"), answer
        return outcome(median(ran.answer["times"])), answer

    def whole(
        self, file: Path, inputs: Sequence[np.ndarray[Any, Any]], repeats: int = 10
    ) -> tuple[list[float], list[Any], Reply]:
        """Times a model's library; the times, what it answers and the reply itself."""
        ran = self._runner.ask(
            "whole", str(file), list(inputs), repeats, self.remote, within_s=60.0, late=CandidateFailure.SLOW_RUN
        )
        if ran.complaint:
            raise ModelError(f"the compiled model cannot be run: {ran.complaint.splitlines()[-1]}")
        return ran.answer["times"], ran.answer["outputs"], ran

    def close(self) -> None:
        """Ends all processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)  # first: what waits would start new ones
        for worker in self._workers:
            worker.close()
        self._folder.cleanup()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arguments(module: Any) -> Arguments:
    found = schedules().arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
    return tuple((str(one.dtype), tuple(int(size) for size in one.shape)) for one in found)


def _same(answer: Sequence[float], expected: Sequence[float]) -> bool:
    length = max(expected[0], 1e-6)
    return all(np.isfinite(one) and abs(one - other) <= SAME * length for one, other in zip(answer, expected))
