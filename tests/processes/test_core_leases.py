"""Leases on cores, between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from onefold.processes import (
    core_leases,
    lease_cores,
    lease_free_cores,
    lease_job_cores,
    least_used_cores,
    runtime_folder,
)
from onefold.processes.runtime_folder import runtime_folder as folder_of_locks

CORES = [4, 5, 6]
HOLDER = """
import sys
from onefold.processes import lease_cores
lease = lease_cores(int(sys.argv[1]), [4, 5, 6])
print(*lease.cores, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "onefold"


@contextmanager
def holder(count: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Let another process lease cores inside the block."""
    command = [sys.executable, "-c", HOLDER, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, [int(core) for core in process.stdout.readline().split()]
        finally:
            process.kill()


def test_processes_share_a_core_only_when_none_is_free() -> None:
    with holder(1) as (_, one), holder(1) as (_, two), lease_cores(1, CORES) as mine:
        assert sorted([*one, *two, *mine.cores]) == CORES
        with lease_cores(2, CORES) as more, lease_cores(1, CORES) as last:
            assert sorted([*more.cores, *last.cores]) == CORES


def test_only_cores_that_no_worker_has_are_lent() -> None:
    with holder(1) as (_, one):
        free = lease_free_cores(3, CORES)
        assert free is not None
        with free:
            assert sorted([*one, *free.cores]) == CORES
            assert lease_free_cores(1, CORES) is None


def test_leases_end_with_a_killed_holder(runtime: Path) -> None:
    with holder(3) as (process, cores):
        assert cores == CORES
        job = lease_job_cores(1, CORES)  # a worker is no obstacle to a job
        assert job is not None
        job.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert least_used_cores(CORES) == CORES
    assert [path.name for path in (runtime / "cores").iterdir()] == ["lock"]


def test_jobs_never_share_a_core_and_avoid_those_of_workers() -> None:
    with ExitStack() as stack:
        stack.enter_context(lease_cores(1, [4]))
        first = lease_job_cores(1, CORES)
        assert first is not None
        assert first.cores == [5]
        assert lease_job_cores(3, CORES) is None
        others = lease_job_cores(99, [4, 6])
        assert others is not None
        for lease in (first, first, others):
            lease.close()
    three = lease_job_cores(3, CORES)
    assert three is not None
    assert lease_job_cores(1, CORES) is None
    three.close()


def test_a_lease_that_was_left_to_a_child_ends_with_the_child() -> None:
    lease = lease_job_cores(3, CORES)
    assert lease is not None
    assert lease.descriptor is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE, pass_fds=[lease.descriptor]
    )
    lease.leave_to_child()
    assert lease_job_cores(1, CORES) is None
    child.kill()
    child.communicate()
    again = lease_job_cores(3, CORES)
    assert again is not None
    again.close()


def test_a_process_that_is_suspended_while_it_chooses_does_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_leases, "LOCK_TIMEOUT_S", 0.05)
    with core_leases._choosing(), lease_cores(1, CORES) as lease:
        assert lease.cores == [4]


def test_a_folder_of_somebody_else_is_not_used(runtime: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime_folder, "SHARED", tmp_path)
    assert folder_of_locks() == runtime
    runtime.rmdir()
    runtime.symlink_to("/")
    assert folder_of_locks() == tmp_path / f"onefold-{os.getuid()}"
    folder_of_locks().chmod(0o777)
    with pytest.raises(PermissionError, match="no folder for locks"):
        folder_of_locks()
    with lease_cores(2, CORES) as lease:  # then cores are chosen without regard to others
        assert lease.cores == [4, 5]
    assert least_used_cores(CORES) == CORES
