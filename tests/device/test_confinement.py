"""Confinement of real processes to cores and memory, and simulated control groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.device import confinement
from onefold.device.confinement import CGROUP_VARIABLE, Confinement, confine, remove_group
from onefold.vocabulary.errors import DeviceError
from onefold.vocabulary.records import from_json, to_json

MB = 1_000_000

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")


def in_a_process(body: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import json, os, sys\nfrom onefold.device.confinement import confine\n"
    code += "from onefold.vocabulary.records import to_json\n"
    return subprocess.run(
        [sys.executable, "-c", code + body, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment},
    )


def one_core() -> int:
    return max(os.sched_getaffinity(0))


ALLOCATE = """
done = confine([int(sys.argv[1])], int(sys.argv[2]))
sys.stdout.write(json.dumps(to_json(done)) + "\\n")
sys.stdout.flush()
try:
    block = bytearray(int(sys.argv[3]))
    block[::4096] = bytes(len(block[::4096]))
    sys.stdout.write("allocated")
except MemoryError:
    sys.stdout.write("refused")
"""


@linux_only
class TestRealProcesses:
    def test_threads_and_children_are_pinned(self) -> None:
        before = os.sched_getaffinity(0)
        body = """
import threading, time
seen = []
late = threading.Event()
early = threading.Thread(target=lambda: (late.wait(), seen.append(os.sched_getaffinity(0))))
early.start()
done = confine([int(sys.argv[1])], None)
late.set()
early.join()
threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0))).start()
child = os.popen(sys.executable + " -c 'import os; print(*os.sched_getaffinity(0))'").read()
time.sleep(0.05)
seen.append(os.sched_getaffinity(0))
sys.stdout.write(json.dumps([to_json(done), [sorted(each) for each in seen], child.split()]))
"""
        result = in_a_process(body, str(one_core()))
        assert result.returncode == 0, result.stderr
        done, seen, child = json.loads(result.stdout)
        assert seen == [[one_core()]] * 3
        assert child == [str(one_core())]
        assert from_json(Confinement, done) == Confinement(
            (one_core(),), "affinity", None, "none: no limit was requested"
        )
        assert os.sched_getaffinity(0) == before

    def test_memory_beyond_the_limit_is_refused(self) -> None:
        result = in_a_process(ALLOCATE, str(one_core()), str(400 * MB), str(600 * MB), **{CGROUP_VARIABLE: ""})
        done = from_json(Confinement, json.loads(result.stdout.splitlines()[0]))
        assert done.memory_by in ("rlimit", "cgroup1", "cgroup2")
        assert done.memory_bytes == 400 * MB
        assert result.returncode < 0 or result.stdout.endswith("refused"), result.stdout  # killed, or told so

    def test_memory_within_the_limit_is_allocated(self) -> None:
        result = in_a_process(ALLOCATE, str(one_core()), str(1000 * MB), str(100 * MB), **{CGROUP_VARIABLE: ""})
        assert result.stdout.endswith("allocated"), result.stderr

    def test_model_runs_within_the_limit(self, tmp_path: Path) -> None:
        body = """
import numpy as np
from onefold.agent import probe_program
from onefold.device.probe import probe_models
done = confine([int(sys.argv[1])], 500_000_000)
sys.stdout.write(str(probe_program.dispatch_us(probe_models(), 0.01)[0]))
"""
        result = in_a_process(body, str(one_core()), **{CGROUP_VARIABLE: ""})
        assert result.returncode == 0, result.stderr
        assert float(result.stdout) > 0

    @pytest.mark.skipif(
        not os.environ.get(CGROUP_VARIABLE), reason=f"no control group is delegated by ${CGROUP_VARIABLE}"
    )
    def test_delegated_control_group_is_used_and_removed(self) -> None:
        result = in_a_process(ALLOCATE, str(one_core()), str(400 * MB), str(600 * MB))
        done = from_json(Confinement, json.loads(result.stdout.splitlines()[0]))
        assert done.memory_by in ("cgroup1", "cgroup2")
        assert result.returncode < 0 or result.stdout.endswith("refused")
        assert remove_group(done.group)


@pytest.fixture
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the real limits, which would apply to this test process."""
    monkeypatch.setattr(confinement, "_pin", lambda cores: "affinity")
    monkeypatch.setattr(confinement, "_set_rlimit", lambda memory_bytes: "rlimit")
    monkeypatch.setattr(confinement.atexit, "register", lambda *call: None)


@pytest.mark.usefixtures("without_limits")
class TestSimulatedGroups:
    def test_version_2_group_is_created_inside_the_delegated_one(self, tmp_path: Path) -> None:
        parent = tmp_path / "onefold"
        parent.mkdir()
        (parent / "cgroup.subtree_control").write_text("cpu memory\n")
        done = confine([0], 300 * MB, groups=tmp_path, environment={CGROUP_VARIABLE: str(parent)})
        group = parent / f"onefold-{os.getpid()}"
        assert (done.memory_by, done.group) == ("cgroup2", str(group))
        assert (group / "memory.max").read_text() == str(300 * MB)
        assert (group / "memory.swap.max").read_text() == "0"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        assert from_json(Confinement, to_json(done)) == done

    def test_version_1_limit(self, tmp_path: Path) -> None:
        (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712")
        done = confine([0], 300 * MB, groups=tmp_path, environment={CGROUP_VARIABLE: str(tmp_path)})
        assert done.memory_by == "cgroup1"
        assert done.group is not None
        assert (Path(done.group) / "memory.limit_in_bytes").read_text() == str(300 * MB)

    def test_group_without_memory_controller_is_not_used(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
        done = confine([0], 300 * MB, groups=tmp_path, environment={CGROUP_VARIABLE: str(tmp_path)})
        assert (done.memory_by, done.group) == ("rlimit", None)
        assert [each.name for each in tmp_path.iterdir()] == ["cgroup.subtree_control"]

    def test_root_does_not_use_undelegated_groups(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "memory" / "service"
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text("9223372036854771712")
        own = tmp_path / "own"
        own.write_text("4:memory:/service\n")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert confine([0], 300 * MB, groups=tmp_path, own=own, environment={}).memory_by == "rlimit"
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert confine([0], 300 * MB, groups=tmp_path, own=own, environment={}).memory_by == "cgroup1"

    def test_groups_of_killed_processes_are_removed(self, tmp_path: Path) -> None:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        left, living, other = (tmp_path / f"onefold-{name}" for name in (ended.pid, os.getppid(), "notes"))
        for folder in (left, living, other):
            folder.mkdir()
        (tmp_path / "memory.limit_in_bytes").write_text("0")
        confine([0], 300 * MB, groups=tmp_path, environment={CGROUP_VARIABLE: str(tmp_path)})
        assert not left.exists()
        assert living.exists()
        assert other.exists()

    def test_empty_group_is_removed(self, tmp_path: Path) -> None:
        group = tmp_path / "onefold-1"
        group.mkdir()
        assert remove_group(str(group))
        assert not group.exists()
        assert remove_group(None)


@linux_only
def test_invalid_arguments_are_refused_before_confining() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(DeviceError, match="at least one core"):
        confine([], None)
    with pytest.raises(DeviceError, match="among those that this process may use"):
        confine([100_000], None)
    with pytest.raises(DeviceError, match="memory_bytes must be an integer of at least 1"):
        confine([one_core()], 0)
    assert os.sched_getaffinity(0) == before
