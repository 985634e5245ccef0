"""The queue of studies."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from queue_processes import command, start_study

from onefold import Budget, Config, Space, Study
from onefold.processes import clock, lease_job_cores
from onefold.processes.identity import parse_identity
from onefold.store import AttemptOutcome, Job
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.testing.toy import Spirals
from onefold.vocabulary.errors import InputError, QueueBusy
from onefold.vocabulary.records import StudyState
from onefold.vocabulary.space import Float
from small_studies import small_study

TINY = Budget(trials=2, max_epochs=1)
EXCLUSIVE = {"parallel": len(os.sched_getaffinity(0)), "engine": "processes"}  # takes all cores
DEADLINE_S = 300.0


class QueueProcesses:
    """A home whose queue is served by real processes, with studies that end when they are told to."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.queue = Queue(self.home, start_study)
        self.servers: list[subprocess.Popen[bytes]] = []

    def submit(self, *names: str, **options: object) -> None:
        for name in names:
            self.queue.submit(small_study(Spirals(), self.home.path, budget=TINY, name=name, **options))

    def serve(self) -> subprocess.Popen[bytes]:
        self.servers.append(subprocess.Popen(command("serve", str(self.home.path))))
        return self.servers[-1]

    def job(self, name: str) -> Job:
        with closing(self.home.store()) as store:
            job = store.job(name)
        assert job is not None
        return job

    @property
    def started(self) -> list[str]:
        file = self.home.path / "started"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def studies(self) -> list[str]:
        return [line.split()[0] for line in self.started]

    def owner(self, name: str) -> int:
        """Return the process that runs a study, once it has noted its start."""
        wait_until(lambda: self.job(name).attempt is not None and self.studies.count(name) == self.attempts(name))
        attempt = self.job(name).attempt
        assert attempt is not None
        owner = parse_identity(attempt.owner)
        assert owner is not None
        return owner.pid

    def attempts(self, name: str) -> int:
        return len(self.job(name).attempts)

    def end(self, *names: str, failure: str = "") -> None:
        for name in names:
            (self.home.path / f"{name}.end").write_text(failure)

    def wait_for_end(self, *names: str) -> None:
        wait_until(lambda: all(self.job(name).ended is not None for name in names))

    def close(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
        for job in self.queue.waiting():
            owner = parse_identity(job.attempt.owner) if job.attempt is not None else None
            if owner is not None and owner.is_alive:
                os.kill(owner.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(*pids: int) -> None:
    processes = [psutil.Process(pid) for pid in pids]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=DEADLINE_S)


@pytest.fixture(autouse=True)
def _cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of each test have all cores."""
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[QueueProcesses]:
    processes = QueueProcesses(tmp_path / "home")
    yield processes
    processes.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def a_study(home: Home, name: str) -> Study:
    return small_study(Spirals(), home.path, budget=TINY, name=name)


def test_studies_run_in_their_own_processes_and_a_failing_one_does_not_block_the_next(
    tmp_path: Path, home: Home
) -> None:
    workload = tmp_path / "mine.py"
    workload.write_text(
        "from onefold.testing.toy import Spirals\n"
        "class Mine(Spirals):\n"
        "    def build(self, config):\n"
        "        raise RuntimeError('no')\n"
    )
    (tmp_path / "gone.py").write_text(workload.read_text())
    queue, events = Queue(home), list[str]()
    queue.submit(small_study(str(workload), home.path, budget=TINY, name="broken"))
    queue.submit(small_study(str(tmp_path / "gone.py"), home.path, budget=TINY, name="gone"))
    (tmp_path / "gone.py").unlink()
    queue.submit(a_study(home, "sound"))
    assert queue.run(on_event=events.append) == 3
    assert {"broken: failed", "gone: failed", "sound: done"} <= set(events)
    assert Study.open("sound", home=home).record.state is StudyState.DONE
    assert [job.attempts[-1].outcome for job in queue.jobs()] == ["failed", "failed", "done"]
    assert queue.run() == 0


def test_a_job_that_outlives_its_server_ends_on_time_and_is_not_started_again(here: QueueProcesses) -> None:
    here.submit("a", "b", **EXCLUSIVE)
    server = here.serve()
    here.owner("a")
    kill(server.pid)
    here.end("a")
    here.wait_for_end("a")  # nobody serves the queue
    response_s, ended = here.job("a").response_s, here.job("a").ended
    assert response_s is not None
    here.end("b")
    assert here.queue.run() == 1
    assert here.studies == ["a", "b"]
    assert (here.job("a").response_s, here.job("a").ended) == (response_s, ended)
    assert here.job("a").attempts[0].outcome is AttemptOutcome.DONE


@pytest.mark.parametrize("victims", [("server",), ("study",), ("server", "study")])
@pytest.mark.slow
def test_a_killed_server_is_replaced_and_a_killed_study_resumed(here: QueueProcesses, victims: tuple[str, ...]) -> None:
    here.submit("a", "b", **EXCLUSIVE)
    server = here.serve()
    owner = here.owner("a")
    kill(*[{"server": server.pid, "study": owner}[victim] for victim in victims])
    if "server" in victims:
        here.serve()
    if "study" in victims:
        wait_until(lambda: here.studies == ["a", "a"])
    else:
        assert here.owner("a") == owner
    here.end("a", "b")
    here.wait_for_end("a", "b")
    assert here.servers[-1].wait(DEADLINE_S) == 0
    lost = ["lost"] if "study" in victims else []
    assert [attempt.outcome for attempt in here.job("a").attempts] == [*lost, "done"]
    assert here.studies == ["a", *(["a"] if lost else []), "b"]
    a, b = here.job("a"), here.job("b")
    assert a.ended is not None
    assert b.began is not None
    assert b.began.since(a.ended) >= 0.0
    assert a.response_s == a.ended.since(a.submitted)


@pytest.mark.slow
def test_a_study_that_dies_three_times_without_an_epoch_has_failed(here: QueueProcesses) -> None:
    here.submit("a", "b", **EXCLUSIVE)
    server = here.serve()
    for count in (1, 2, 3):
        wait_until(lambda count=count: here.attempts("a") == count)  # type: ignore[misc]
        kill(here.owner("a"))
    here.end("b")
    assert server.wait(DEADLINE_S) == 0
    assert [attempt.outcome for attempt in here.job("a").attempts] == ["lost", "lost", "lost"]
    assert here.job("a").ended is not None
    assert here.studies == ["a", "a", "a", "b"]


@pytest.mark.slow
def test_a_suspended_server_is_told_and_continues(here: QueueProcesses) -> None:
    here.submit("a", "b", **EXCLUSIVE)
    server = here.serve()
    here.owner("a")
    os.kill(server.pid, signal.SIGSTOP)
    here.end("a", "b")
    here.wait_for_end("a")  # the study needs no server to end
    assert here.queue.server is not None
    assert (here.queue.server.pid, here.queue.server.is_suspended) == (server.pid, True)
    assert here.studies == ["a"]
    with pytest.raises(QueueBusy):
        here.queue.run()
    os.kill(server.pid, signal.SIGCONT)
    assert server.wait(DEADLINE_S) == 0
    assert here.studies == ["a", "b"]
    assert here.queue.server is None


def test_a_study_that_is_run_by_hand_is_waited_for(here: QueueProcesses) -> None:
    here.submit("a")
    here.end("a")
    (here.home.path / "a.end").rename(here.home.path / "later")
    by_hand = subprocess.Popen(command("study", "a", str(here.home.path)))
    assert here.owner("a") == by_hand.pid
    events = list[str]()
    server = threading.Thread(target=here.queue.run, args=(events.append,))
    server.start()
    wait_until(lambda: events == ["a: runs already; waiting for its end"])
    (here.home.path / "later").rename(here.home.path / "a.end")
    server.join(DEADLINE_S)
    assert events[1:] == ["a: done"]
    assert by_hand.wait(DEADLINE_S) == 0
    assert here.studies == ["a"]
    assert len(here.job("a").attempts) == 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
def test_jobs_of_one_thread_run_side_by_side_on_different_cores_also_of_two_homes(
    here: QueueProcesses, tmp_path: Path
) -> None:
    there = QueueProcesses(tmp_path / "there")
    cores = sorted(os.sched_getaffinity(0))
    here.submit("a", "c")
    there.submit("b")
    servers = [threading.Thread(target=each.queue.run, args=(print,)) for each in (here, there)]
    taken = lease_job_cores(len(cores) - 2, cores)  # as if jobs of a third home ran there
    assert taken is not None
    try:
        servers[0].start()
        wait_until(lambda: sorted(here.studies) == ["a", "c"])
        servers[1].start()
        wait_until(lambda: there.queue.server is not None)
        used = dict(line.split()[:2] for line in here.started)
        assert used["a"] != used["c"]
        here.end("a")
        wait_until(lambda: there.studies == ["b"])
        assert there.started[0].split()[1] == used["a"]
        assert here.job("c").ended is None
        here.end("c")
        there.end("b")
        for server in servers:
            server.join(DEADLINE_S)
    finally:
        taken.close()
        there.close()
    assert not here.queue.waiting()
    assert not there.queue.waiting()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
def test_studies_that_measure_their_parallelism_share_the_cores(here: QueueProcesses) -> None:
    cores = len(os.sched_getaffinity(0))
    here.submit("a", engine="processes")
    server = threading.Thread(target=here.queue.run, args=(print,))
    server.start()
    wait_until(lambda: here.studies == ["a"])
    here.submit("b", "c", engine="processes")
    here.end("a")
    wait_until(lambda: sorted(here.studies) == ["a", "b", "c"])
    here.end("b", "c")
    server.join(DEADLINE_S)
    used = {name: numbers.split(",") for name, numbers in (line.split() for line in here.started)}
    assert len(used["a"]) == cores
    assert len(used["b"]) == len(used["c"]) == cores // 2
    assert not set(used["b"]) & set(used["c"])


def test_jumps_of_the_clock_change_neither_order_nor_response_times(
    here: QueueProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.submit("a")
    wall_clock = clock.wall_clock
    monkeypatch.setattr(clock, "wall_clock", lambda: wall_clock() + 1e7)
    here.submit("b")
    here.end("a", "b")
    monkeypatch.setattr(clock, "wall_clock", lambda: wall_clock() - 1e7)
    assert here.queue.run() == 2  # the processes of the studies have the true clock
    assert [job.study for job in here.queue.jobs()] == ["a", "b"]
    for job in here.queue.jobs():
        assert job.response_s is not None
        assert 0.0 <= job.waited_s(clock.now()) < job.response_s < DEADLINE_S


@pytest.mark.slow
def test_an_interrupted_server_interrupts_its_studies_which_stay_in_the_queue(here: QueueProcesses) -> None:
    here.submit("a")
    server = here.serve()
    owner = psutil.Process(here.owner("a"))
    server.send_signal(signal.SIGINT)
    server.wait(DEADLINE_S)
    assert not owner.is_running()
    assert [job.study for job in here.queue.waiting()] == ["a"]


@pytest.mark.slow
def test_shares_decide_whose_job_is_next(here: QueueProcesses) -> None:
    for tenant, names in (("ann", "abc"), ("bob", "d")):
        for name in names:
            here.queue.submit(small_study(Spirals(), here.home.path, budget=TINY, name=name), tenant=tenant)
    assert here.queue.shares == {}
    here.queue.share({"ann": 1, "bob": 1})
    here.end(*"abcd")
    taken = lease_job_cores(len(os.sched_getaffinity(0)) - 1, sorted(os.sched_getaffinity(0)))
    assert taken is not None
    with taken:
        here.queue.run()
    assert here.studies == ["a", "d", "b", "c"]


def test_mistakes_are_answered_before_anything_is_stored(home: Home) -> None:
    def square(config: Config) -> float:
        return float(config.x) ** 2

    queue = Queue(home)
    with pytest.raises(InputError, match="move the workload into a file"):
        queue.submit(Study(square, Space(x=Float(-1, 1)), home=home))
    study = a_study(home, "a")
    with pytest.raises(InputError, match="a tenant's name"):
        queue.submit(study, tenant="a b")
    for share in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="above 0"):
            queue.share({"ann": share})
    assert queue.jobs() == []
    assert queue.submit(study) == 0
    with pytest.raises(InputError, match="in the queue already"):
        queue.submit(study)
