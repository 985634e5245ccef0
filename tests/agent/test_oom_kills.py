"""The kernel's counters of out-of-memory kills, read from files of its format."""

from __future__ import annotations

from pathlib import Path

from onefold.agent.oom_kills import oom_kills


def test_the_counters_of_the_system_and_of_a_group_are_added(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1234\noom_kill 3\nfoo 1\n")
    for version, file in (("v1", "memory.oom_control"), ("v2", "memory.events")):
        group = tmp_path / version
        group.mkdir()
        (group / file).write_text("low 0\noom 7\noom_kill 2\n")
        assert oom_kills(str(group), groups=tmp_path / "none", system=tmp_path / "vmstat") == 5


def test_without_counters_there_were_no_kills(tmp_path: Path) -> None:
    assert oom_kills(str(tmp_path), groups=tmp_path, system=tmp_path / "vmstat") == 0
