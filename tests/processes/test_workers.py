"""Workers as real processes, with real kills, pauses and hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.processes import Watch, Worker, describe_exit
from onefold.processes.identity import parse_identity, this_process

HERE = Path(__file__).parent
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def importable_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("child")
    yield worker
    worker.kill()


def ask(worker: Worker, *message: Any) -> Any:
    return worker.ask(message, DEADLINE_S)


def test_a_child_echoes_messages_of_any_size(worker: Worker) -> None:
    for message in ("short", {"a": (1, None)}, b"x" * (3 << 20)):
        assert ask(worker, "echo", message) == message


def test_a_message_that_cannot_be_encoded_is_not_sent(worker: Worker) -> None:
    with pytest.raises(Exception, match="pickle"):
        worker.send(("echo", lambda: None))
    assert ask(worker, "echo", 1) == 1


def test_a_child_imports_what_its_parent_can(worker: Worker, tmp_path: Path) -> None:
    assert [entry for entry in sys.path if entry and entry not in ask(worker, "path")] == []


def test_a_child_loads_only_the_standard_library(worker: Worker) -> None:
    assert not {"torch", "numpy", "cloudpickle"} & set(ask(worker, "modules"))


def test_the_environment_has_overrides_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_A", "parent")
    monkeypatch.setenv("ONEFOLD_B", "parent")
    worker = Worker(
        "child", environment={"ONEFOLD_A": "override"}, defaults={"ONEFOLD_B": "default", "ONEFOLD_C": "default"}
    )
    try:
        seen = [ask(worker, "environment", f"ONEFOLD_{letter}") for letter in "ABC"]
    finally:
        worker.kill()
    assert seen == ["override", "parent", "default"]


@pytest.mark.parametrize("silent", [False, True])
def test_what_a_child_prints_goes_to_stderr_or_nowhere(capfd: pytest.CaptureFixture[str], silent: bool) -> None:
    worker = Worker("child", silent=silent)
    try:
        ask(worker, "print", "a line")
    finally:
        worker.kill()
    out, err = capfd.readouterr()
    assert (out, "a line" in err) == ("", not silent)


def test_a_child_that_exits_is_noticed_with_its_exit_code(worker: Worker) -> None:
    with pytest.raises((EOFError, OSError)):
        ask(worker, "exit", 3)
    assert describe_exit(worker.exit_code()) == "exited with code 3"


def test_a_child_that_crashes_is_noticed_with_its_signal(worker: Worker) -> None:
    with pytest.raises((EOFError, OSError)):
        ask(worker, "abort")
    assert "SIGABRT" in describe_exit(worker.exit_code())


def test_a_killed_child_is_noticed(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        ask(worker, "echo", 1)
    assert "SIGKILL" in describe_exit(worker.exit_code())


@pytest.mark.parametrize("request_", ["hang", "half a message"])
def test_a_child_that_hangs_is_a_timeout(worker: Worker, request_: str) -> None:
    ask(worker, "echo", "started")
    with pytest.raises(TimeoutError):
        worker.ask((request_,), 0.2)
    assert worker.exit_code(0.0) is None


def test_a_paused_child_does_not_answer_until_it_is_resumed(worker: Worker) -> None:
    ask(worker, "echo", "started")
    worker.pause()
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    worker.send(("echo", "later"))
    with pytest.raises(TimeoutError):
        worker.receive(0.0)
    worker.resume()
    assert worker.receive(DEADLINE_S) == "later"


def test_ctrl_c_is_left_to_the_parent(worker: Worker) -> None:
    ask(worker, "interrupt")
    assert ask(worker, "echo", "alive") == "alive"


def test_killing_a_child_kills_its_children(worker: Worker) -> None:
    grandchild = psutil.Process(ask(worker, "start a child"))
    worker.kill()
    psutil.wait_procs([grandchild], timeout=DEADLINE_S)
    assert not grandchild.is_running()
    worker.kill()  # a second time is harmless


def test_killing_a_child_kills_its_daemons_and_deletes_its_temporary_files(worker: Worker) -> None:
    daemon = psutil.Process(ask(worker, "start a daemon"))
    file = Path(ask(worker, "create a temporary file"))
    assert daemon not in psutil.Process(worker.pid).children(recursive=True)
    assert file.exists()
    worker.kill()
    psutil.wait_procs([daemon], timeout=DEADLINE_S)
    assert not daemon.is_running()
    assert not file.exists()


def test_daemons_of_a_child_that_was_killed_from_outside_end_with_it(worker: Worker) -> None:
    daemon = psutil.Process(ask(worker, "start a daemon"))
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        worker.receive(DEADLINE_S)
    worker.kill()
    psutil.wait_procs([daemon], timeout=DEADLINE_S)
    assert not daemon.is_running()


@pytest.fixture
def owners() -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that are killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for owner in started:
        owner.kill()
        owner.wait()


def test_the_guard_that_outlives_its_process_causes_no_warning() -> None:
    program = "from onefold.processes import guard; guard.start_guard(); assert guard._guard; guard._guard = None"
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always::ResourceWarning", "-c", program],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "ResourceWarning" not in ran.stderr


def owner_of_a_daemon(
    owners: list[subprocess.Popen[str]], *, without_guard: bool
) -> tuple[subprocess.Popen[str], psutil.Process, Path]:
    """Start a program whose worker has started a daemon and created a temporary file."""
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from onefold.processes import Worker, guard\n"
        "worker = Worker('child')\n"
        f"{without_guard} and (guard._guard.kill(), guard._guard.wait())\n"
        "print(worker.ask(('start a daemon',)), worker.ask(('create a temporary file',)), flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    owners.append(owner)
    assert owner.stdout is not None
    with owner.stdout:
        pid, file = owner.stdout.readline().split()
    return owner, psutil.Process(int(pid)), Path(file)


def test_daemons_and_temporary_files_end_with_a_killed_parent(owners: list[subprocess.Popen[str]]) -> None:
    owner, daemon, file = owner_of_a_daemon(owners, without_guard=False)
    guard = next(child for child in psutil.Process(owner.pid).children() if "marked.py" in str(child.cmdline()))
    assert file.exists()
    owner.kill()
    owner.wait()
    psutil.wait_procs([daemon, guard], timeout=DEADLINE_S)
    assert not daemon.is_running()
    assert not guard.is_running()
    assert not file.exists()


def test_the_next_start_removes_what_a_killed_parent_without_a_guard_left_behind(
    owners: list[subprocess.Popen[str]],
) -> None:
    owner, daemon, file = owner_of_a_daemon(owners, without_guard=True)
    other, other_daemon, other_file = owner_of_a_daemon(owners, without_guard=True)
    owner.kill()
    owner.wait()
    assert daemon.is_running()
    assert file.exists()
    start = "from onefold.processes.scratch import scratch_folder\nwith scratch_folder(): pass"
    subprocess.run([sys.executable, "-c", start], check=True)
    psutil.wait_procs([daemon], timeout=DEADLINE_S)
    assert not daemon.is_running()
    assert not file.exists()
    assert other_daemon.is_running()  # its owner lives
    assert other_file.exists()
    other.kill()
    other.wait()
    subprocess.run([sys.executable, "-c", start], check=True)
    psutil.wait_procs([other_daemon], timeout=DEADLINE_S)
    assert not other_daemon.is_running()


def test_a_scratch_folder_of_a_killed_process_is_deleted() -> None:
    program = (
        "import time\n"
        "from onefold.processes.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'file').touch()\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        folder = Path(owner.stdout.readline().strip())
    assert (folder / "file").exists()
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + DEADLINE_S
    while folder.parent.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.parent.exists()


def test_an_identity_is_not_that_of_a_later_process_or_of_another_place() -> None:
    here = this_process()
    assert parse_identity(str(here)) == here
    assert (here.is_alive, here.is_dead) == (True, False)
    later = replace(here, start="1")  # another process had this id before
    assert (later.is_alive, later.is_dead) == (False, True)
    restarted = replace(here, boot="another")
    assert (restarted.is_alive, restarted.is_dead) == (False, True)
    for unknown in (replace(here, host="another"), replace(here, namespace="another")):
        assert (unknown.is_alive, unknown.is_dead) == (False, False)
    assert parse_identity("kernels-abc") is None


def test_a_paused_child_can_be_killed(worker: Worker) -> None:
    ask(worker, "echo", "started")
    worker.pause()
    worker.kill()
    assert not psutil.pid_exists(worker.pid)


def test_a_child_outlives_the_thread_that_started_it() -> None:
    workers: list[Worker] = []
    thread = threading.Thread(target=lambda: workers.append(Worker("child")))
    thread.start()
    thread.join()
    try:
        assert ask(workers[0], "echo", "alive") == "alive"
    finally:
        workers[0].kill()


def test_a_receiving_thread_is_woken_when_the_worker_is_killed(worker: Worker) -> None:
    ask(worker, "echo", "started")
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            worker.receive()
        except (EOFError, OSError) as error:
            errors.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    worker.kill()
    thread.join(DEADLINE_S)
    assert len(errors) == 1


@pytest.mark.parametrize("paused", [False, True])
def test_children_die_with_a_killed_parent(paused: bool) -> None:
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from onefold.processes import Worker\n"
        "worker = Worker('child')\n"
        "worker.ask(('echo', 1))\n"
        f"worker.pause() if {paused} else worker.send(('hang',))\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    psutil.wait_procs([child], timeout=DEADLINE_S)
    assert not child.is_running()


def test_a_child_that_still_imports_dies_with_its_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "slow_start.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    program = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from onefold.processes import Worker\n"
        "Worker('slow_start').receive()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        pid = tmp_path / "pid"
        deadline = time.monotonic() + DEADLINE_S
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        child = psutil.Process(int(pid.read_text()))
        parent.kill()
    psutil.wait_procs([child], timeout=DEADLINE_S)
    assert not child.is_running()


def test_a_child_whose_parent_is_gone_does_not_start() -> None:
    command = [sys.executable, "-m", "onefold.processes.start", "child", "0", "1"]
    assert subprocess.run(command, timeout=DEADLINE_S, check=False).returncode == 1


def test_a_child_prints_into_the_given_file(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        worker = Worker("child", output=output.fileno())
    ask(worker, "print", "a line")
    worker.kill()
    assert (tmp_path / "output").read_text() == "a line"


def test_a_suspended_child_is_noticed(worker: Worker) -> None:
    ask(worker, "echo", "started")
    watch = Watch(worker)
    watch.poll()
    assert not worker.is_stopped
    os.kill(worker.pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE_S
    while not watch.is_suspended and time.monotonic() < deadline:
        time.sleep(0.05)
        watch.poll()
    assert watch.is_suspended
    worker.resume()
    watch.poll()
    assert not watch.is_suspended
    assert ask(worker, "echo", 1) == 1


def test_a_program_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(OSError, match="no/such/python"):
        Worker("child")
