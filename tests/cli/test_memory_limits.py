"""Commands refuse data that is larger than the memory before they read it."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from numpy.lib import format as npy

from onefold import Config
from onefold.workloads.digits import Digits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
GIB = 2**30
MEMORY_BYTES = 6 * GIB  # of a command, on top of which it cannot allocate: torch alone maps about one
CONFIG = Config(
    depth=1, filters=4, kernel=3, hidden=16, activation="relu", dropout=0.0,
    batch_size=32, optimizer="adam", lr=3e-3, weight_decay=1e-5,
)  # fmt: skip


def write_bomb(path: Path, arrays: dict[str, tuple[int, ...]]) -> None:
    """Write a small .npz file with float32 arrays of zeros, compressed, without compressing them."""
    members, directory = io.BytesIO(), io.BytesIO()
    for array, shape in arrays.items():
        values = 4
        for length in shape:
            values *= length
        head = io.BytesIO()
        npy.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
        deflate = zlib.compressobj(9, wbits=-15)
        start = deflate.compress(head.getvalue()) + deflate.flush(zlib.Z_FULL_FLUSH)
        deflate = zlib.compressobj(9, wbits=-15)
        block = deflate.compress(bytes(16 * 2**20)) + deflate.flush(zlib.Z_FULL_FLUSH)
        blocks = start + block * -(-values // (16 * 2**20)) + b"\x03\x00"
        name, expanded = f"{array}.npy".encode(), len(head.getvalue()) + values
        wide = struct.pack("<2H2Q", 1, 16, expanded, len(blocks))  # the sizes of ZIP64
        common = struct.pack("<5H3I2H", 45, 0, 8, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(name), len(wide))
        directory.write(b"PK\x01\x02" + struct.pack("<H", 45) + common)
        directory.write(struct.pack("<3H2I", 0, 0, 0, 0, members.tell()) + name + wide)
        members.write(b"PK\x03\x04" + common + name + wide + blocks)
    offset = members.tell()
    members.write(directory.getvalue())
    count, length = len(arrays), len(directory.getvalue())
    members.write(b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, count, count, length, offset, 0))
    path.write_bytes(members.getvalue())


def limited(here: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a command that may allocate MEMORY_BYTES; return what it printed, and the peak of its memory.

    The peak of the command itself is that of its address space: its ru_maxrss includes this process, which started it.
    """
    program = """
import atexit, resource, runpy, sys
from onefold.meter.memory import high_water_bytes

@atexit.register
def say_peak():
    others_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"\\npeak {max(high_water_bytes(), others_kb * 1024)}", file=sys.stderr)

sys.argv = ["onefold", *sys.argv[1:]]
runpy.run_module("onefold.cli", run_name="__main__")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True, text=True, cwd=here, check=False, timeout=600,
        env={**os.environ, "ONEFOLD_HOME": str(here / "home"), "COLUMNS": "500"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip
    said, _, peak = ran.stderr.rpartition("peak ")
    return subprocess.CompletedProcess(words, ran.returncode, ran.stdout, said), int(peak)


def test_retraining_refuses_compressed_data_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    torch.save(Digits().build(CONFIG).state_dict(), tmp_path / "deploy" / "weights.pt")
    (tmp_path / "deploy" / "model.json").write_text(json.dumps({"workload": "digits", "config": dict(CONFIG)}))
    write_bomb(tmp_path / "new.npz", {"inputs": (2**24, 1, 8, 8), "targets": (2**24,)})
    assert (tmp_path / "new.npz").stat().st_size < 6 * 2**20
    ran, peak_bytes = limited(tmp_path, "retrain", "deploy", "--data", "new.npz", "--memory", "900MB")
    assert ran.returncode == 2
    assert "new.npz, which is compressed, needs 4.06 GiB of memory, but" in ran.stderr
    assert "are left within the limit; save it with numpy.savez or as a folder of .npy files" in ran.stderr
    assert peak_bytes < 900e6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("compress", "model.onnx", "--precision", "fp16", "--samples", "bomb.npz"), "bomb.npz needs 8 GiB of memory"),
        (("compile", "model.onnx", "--samples", "bomb.npz"), "bomb.npz needs 8 GiB of memory"),
        (("measure", "model.onnx"), "model.npz needs 8 GiB of memory"),
    ],
)
def test_samples_beyond_the_memory_are_refused(
    tmp_path: Path, calibrated: Path, tiny: Path, words: tuple[str, ...], why: str
) -> None:
    shutil.copytree(calibrated, tmp_path / "home" / "devices")
    shutil.copyfile(tiny, tmp_path / "model.onnx")
    name = "model.npz" if words[0] == "measure" else "bomb.npz"
    write_bomb(tmp_path / name, {"input0": (2**31 // 192 + 1, 3, 8, 8)})
    assert (tmp_path / name).stat().st_size < 10 * 2**20
    ran, peak_bytes = limited(tmp_path, *words)
    assert ran.returncode == 2
    assert why in ran.stderr
    assert "are free; give a file with fewer samples" in ran.stderr
    assert peak_bytes < GIB
