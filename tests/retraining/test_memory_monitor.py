"""The memory limit is the lowest of the caller's, the control groups', the process's and the machine's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onefold.meter.free_memory import UNLIMITED
from onefold.meter.memory import reset_high_water
from onefold.retraining.memory_monitor import ProcessMemory, monitor_for

MB = 2**20
USED = 100 * MB
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and control groups are Linux's")


class Machine:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, available: int | None = None, used: int = USED) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "groups"
        (self.proc / "self").mkdir(parents=True, exist_ok=True)
        self.cgroups.mkdir(exist_ok=True)
        lines = [f"VmSize:\t{3 * used // 1024} kB", f"VmRSS:\t{used // 1024} kB", f"VmData:\t{2 * used // 1024} kB"]
        (self.proc / "self" / "status").write_text("\n".join(["Name:\tpython", *lines, "Threads:\t2"]))
        if available is not None:
            (self.proc / "meminfo").write_text(
                f"MemTotal: {2**40} kB\nMemFree: 7 kB\nMemAvailable: {available // 1024} kB\n"
            )

    def belongs_to(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")

    def group(self, path: str, limit: int | str, used: int, inactive: int = 0, version: int = 2) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        names = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}[version]
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        prefix = "total_" if version == 1 else ""
        (folder / "memory.stat").write_text(f"anon {used}\nactive_file 5\n{prefix}inactive_file {inactive}\nslab 9\n")

    def memory(self, asked: int | None = None) -> ProcessMemory:
        return ProcessMemory(asked, self.proc, self.cgroups)


def test_without_any_limit_nothing_limits(tmp_path: Path) -> None:
    memory = Machine(tmp_path).memory()
    assert memory.used() == USED
    assert memory.limit() > 2**35


def test_the_limit_of_the_caller_counts(tmp_path: Path) -> None:
    assert Machine(tmp_path, available=2**36).memory(500 * MB).limit() == 500 * MB


def test_available_memory_counts_on_top_of_used_memory(tmp_path: Path) -> None:
    assert Machine(tmp_path, available=50 * MB).memory(500 * MB).limit() == USED + 50 * MB


def test_a_cgroup_v2_limit_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, available=2**36)
    machine.belongs_to("0::/app")
    machine.group("app", 300 * MB, 120 * MB)
    assert machine.memory(500 * MB).limit() == USED + 180 * MB


def test_a_cgroup_v1_limit_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, available=2**36)
    machine.belongs_to("12:cpu,cpuacct:/other", "5:memory:/box/app", "1:name=systemd:/box")
    machine.group("memory/box/app", 300 * MB, 120 * MB, version=1)
    machine.group("other", 1, 1)  # the group of another controller
    assert machine.memory(500 * MB).limit() == USED + 180 * MB


@pytest.mark.parametrize("version", [1, 2])
def test_reclaimable_page_cache_does_not_count(tmp_path: Path, version: int) -> None:
    machine = Machine(tmp_path)
    machine.belongs_to("0::/app" if version == 2 else "5:memory:/app")
    machine.group("app" if version == 2 else "memory/app", 300 * MB, 290 * MB, inactive=150 * MB, version=version)
    assert machine.memory().limit() == USED + 160 * MB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.belongs_to("0::/outer/middle/inner")
    machine.group("outer", 900 * MB, 880 * MB)
    machine.group("outer/middle", "max", 700 * MB)
    machine.group("outer/middle/inner", 400 * MB, 100 * MB)
    assert machine.memory().limit() == USED + 20 * MB
    machine.group("outer", "max", 880 * MB)
    assert machine.memory().limit() == USED + 300 * MB


def test_a_container_finds_its_group_at_the_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.belongs_to("5:memory:/docker/0123abc")
    machine.group("memory", 250 * MB, 110 * MB, version=1)
    assert machine.memory().limit() == USED + 140 * MB
    machine.belongs_to("0::/")
    machine.group("", 220 * MB, 110 * MB)
    assert machine.memory().limit() == USED + 110 * MB


def test_groups_without_a_limit_are_ignored(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.belongs_to("0::/app", "5:memory:/app")
    machine.group("app", "max", 120 * MB)
    machine.group("memory/app", 9223372036854771712, 120 * MB, version=1)
    assert machine.memory().limit() > 2**35


@given(
    asked=st.one_of(st.none(), st.integers(1, 2**34)),
    available=st.integers(1, 2**24).map(lambda pages: 4096 * pages),
    limit=st.integers(1, 2**34),
    used=st.integers(0, 2**33),
    inactive=st.integers(0, 2**32),
)
def test_the_lowest_limit_counts(
    tmp_path_factory: pytest.TempPathFactory, asked: int | None, available: int, limit: int, used: int, inactive: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"), available)
    machine.belongs_to("0::/app")
    machine.group("app", limit, used, inactive)
    room = min(available, limit - max(0, used - inactive))
    assert machine.memory(asked).limit() == min(asked or UNLIMITED, USED + room)


def test_limits_are_read_each_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path, available=2**36)
    machine.belongs_to("0::/app")
    machine.group("app", 300 * MB, 120 * MB)
    memory = machine.memory(500 * MB)
    assert memory.limit() == USED + 180 * MB
    machine.group("app", 200 * MB, 120 * MB)
    assert memory.limit() == USED + 80 * MB


def test_malformed_files_are_ignored(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.belongs_to("0::/app")
    machine.group("app", 300 * MB, 120 * MB)
    (machine.cgroups / "app" / "memory.max").write_text("lots")
    (machine.proc / "meminfo").write_text("MemAvailable: some kB")
    assert machine.memory().limit() > 2**35
    (machine.cgroups / "app" / "memory.max").write_text(str(300 * MB))
    (machine.cgroups / "app" / "memory.stat").unlink()
    assert machine.memory().limit() == USED + 180 * MB


def test_without_proc_the_resource_usage_is_used(tmp_path: Path) -> None:
    memory = ProcessMemory(500 * MB, tmp_path / "none", tmp_path / "none")
    assert memory.used() > MB
    assert memory.limit() == 500 * MB


OWN = """
import json, resource
from onefold.meter.memory import reset_high_water
from onefold.retraining.memory_monitor import ProcessMemory
before = ProcessMemory().limit()
status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("Vm"))
data = 1024 * int(status["VmData"].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (data + 64 * 2**20, resource.RLIM_INFINITY))
memory = ProcessMemory()
room, asked = memory.limit() - memory.used(), ProcessMemory(memory.used() + 2**20)
print(json.dumps([before, memory.limit(), room, asked.limit() - memory.used()]))
"""


def test_a_resource_limit_of_the_process_counts() -> None:
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, timeout=300, check=True)
    before, after, room, asked = json.loads(done.stdout)
    assert after < before
    assert room == pytest.approx(64 * MB, abs=8 * MB)  # Python allocates some meanwhile
    assert asked <= 2 * MB


@pytest.mark.skipif(not reset_high_water(), reason="the high-water mark cannot be reset here")
def test_the_peak_is_measured_from_its_reset() -> None:
    memory = monitor_for(torch.device("cpu"), None)
    assert isinstance(memory, ProcessMemory)
    assert memory.peak() is None
    taken = torch.ones(60 * MB // 4)
    memory.reset_peak()
    first = memory.peak()
    assert first is not None
    assert first == pytest.approx(memory.used(), rel=0.2)
    more = torch.ones(120 * MB // 4)
    del more
    raised = memory.peak()
    assert raised is not None
    assert raised >= first + 110 * MB
    del taken
    memory.reset_peak()
    again = memory.peak()
    assert again is not None
    assert again < raised
