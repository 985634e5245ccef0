"""Weights in model folders: what is written can be read, by others too, and neither takes a copy of the network."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from onefold.model_folder import LEGACY_WEIGHTS, WEIGHTS
from onefold.training import weights
from onefold.training.weights import load_weights_into, read_weights, write_weights


def network(width: int = 8) -> nn.Module:
    torch.manual_seed(width)
    result = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width, 4))
    return result.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def test_all_types_and_memory_formats_are_written_as_safetensors(tmp_path: Path) -> None:
    numbers = torch.arange(24).reshape(2, 3, 4)
    state = {str(dtype): numbers.to(dtype) for dtype in weights.DTYPES}
    state |= {"transposed": numbers.transpose(0, 2), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 2)}
    state |= dict(network().state_dict())
    write_weights(tmp_path, state)
    for found in (safetensors.torch.load_file(tmp_path / WEIGHTS), read_weights(tmp_path)):
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], value) for name, value in state.items())


def test_what_safetensors_cannot_store_is_stored_by_torch(tmp_path: Path) -> None:
    state = {"weight": torch.ones(2), "sparse": torch.eye(2).to_sparse()}
    write_weights(tmp_path, state)
    assert not (tmp_path / WEIGHTS).exists()
    assert (tmp_path / LEGACY_WEIGHTS).is_file()
    assert torch.equal(read_weights(tmp_path)["sparse"].to_dense(), torch.eye(2))


def test_weights_are_loaded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 100)
    given, other = network(), network()
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    write_weights(tmp_path, given.state_dict())
    load_weights_into(other, tmp_path)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in given.state_dict().items())


def test_the_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    for state in ({}, network().state_dict() | {"more": torch.ones(1)}, network(9).state_dict()):
        write_weights(tmp_path, state)
        with pytest.raises(RuntimeError, match=r"another network|size mismatch"):
            load_weights_into(network(), tmp_path)


MEMORY = """
    import sys
    from pathlib import Path
    import torch
    from onefold.meter.memory import PROCESS_MEMORY
    from onefold.training.weights import load_weights_into, write_weights
    network = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(20)))  # 80 MB
    folder = Path(sys.argv[1])
    write_weights(folder, network.state_dict())  # imports what it needs
    for use in (lambda: write_weights(folder, network.state_dict()), lambda: load_weights_into(network, folder)):
        peak = PROCESS_MEMORY.open()
        before = PROCESS_MEMORY.read(peak)
        use()
        print(PROCESS_MEMORY.read(peak) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a moment is known on Linux")
def test_neither_writing_nor_loading_takes_a_copy_of_the_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    written, loaded = (int(line) for line in done.stdout.split())
    assert written < 16_000_000
    assert loaded < 40_000_000


def repacked(folder: Path, form: int) -> None:
    """Write a file of torch again, with another compression."""
    with zipfile.ZipFile(folder / "plain.pt") as plain, zipfile.ZipFile(folder / LEGACY_WEIGHTS, "w", form) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))


def test_a_file_of_torch_that_is_larger_in_memory_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1_000_000)}, tmp_path / "plain.pt")
    repacked(tmp_path, zipfile.ZIP_DEFLATED)
    assert (tmp_path / LEGACY_WEIGHTS).stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"weights\.pt claims more than it has"):
        read_weights(tmp_path)
    repacked(tmp_path, zipfile.ZIP_STORED)
    assert read_weights(tmp_path)["weight"].numel() == 1_000_000
