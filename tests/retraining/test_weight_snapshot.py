"""Snapshots of weights: exact, in any memory format, and on a disk instead of in memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from small_networks import KINDS

from onefold.retraining import disk_file
from onefold.retraining.disk_file import file_system, open_disk_file
from onefold.retraining.weight_snapshot import WeightSnapshot
from onefold.vocabulary.errors import InputError


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_restores_all_weights_and_buffers(kind: str) -> None:
    network = KINDS[kind].network()
    given = {name: value.clone() for name, value in network.state_dict().items()}
    snapshot = WeightSnapshot(network)
    assert snapshot.matches_network()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert snapshot.matches_network()
    strides = [weight.stride() for weight in network.parameters()]
    for value in network.state_dict().values():
        value.add_(1)
    assert not snapshot.matches_network()
    snapshot.restore()
    assert all(torch.equal(value, given[name]) for name, value in network.state_dict().items())
    assert [weight.stride() for weight in network.parameters()] == strides


def test_the_latest_capture_counts() -> None:
    network = KINDS["perceptron"].network()
    snapshot = WeightSnapshot(network)
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(2)
    snapshot.capture()
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(3)
    snapshot.restore()
    assert all(bool((weight == 2).all()) for weight in network.parameters())


def test_file_systems_in_memory_are_known(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(
        "disk / ext4 rw 0 0\ntmpfs /fast tmpfs rw 0 0\ndisk /fast/slow ext4 rw 0 0\n"
    )
    places = {"/": "ext4", "/fastest": "ext4", "/fast/x": "tmpfs", "/fast/slow/x": "ext4"}
    assert {place: file_system(Path(place), tmp_path) for place in places} == places


def test_a_disk_without_space_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk_file, "FOLDERS", ())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match=r"needs .* on a disk .* TMPDIR"):
        open_disk_file(2**60)


MEMORY = """
    import torch
    from onefold.meter.memory import PROCESS_MEMORY
    from onefold.retraining.weight_snapshot import WeightSnapshot
    network = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(20)))  # 80 MB
    peak = PROCESS_MEMORY.open()
    before = PROCESS_MEMORY.read(peak)
    snapshots = [WeightSnapshot(network) for _ in range(2)]
    for snapshot in snapshots:
        snapshot.restore()
        assert snapshot.matches_network()
    print(PROCESS_MEMORY.read(peak) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a moment is known on Linux")
def test_snapshots_take_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16_000_000
