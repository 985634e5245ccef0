"""How malloc treats freed blocks: kept where memory is plentiful, returned to the operating system where it is not."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.retraining.allocator import KEEPING, MODES, SPARING, fastest_mode

BYTES = st.integers(0, 10**11)


@given(tensor_bytes=BYTES, available_bytes=BYTES)
def test_the_fastest_mode_that_fits_is_chosen(tensor_bytes: int, available_bytes: int) -> None:
    chosen = fastest_mode(tensor_bytes, available_bytes)
    assert chosen is SPARING or chosen.highest(tensor_bytes) <= available_bytes
    assert all(mode.highest(tensor_bytes) > available_bytes for mode in MODES[: MODES.index(chosen)])


@given(tensor_bytes=BYTES)
def test_slower_modes_take_less(tensor_bytes: int) -> None:
    assert KEEPING.highest(tensor_bytes) >= SPARING.highest(tensor_bytes) == tensor_bytes
    assert all(tensor_bytes <= mode.usual(tensor_bytes) <= mode.highest(tensor_bytes) for mode in MODES)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is one of Linux")
def test_kept_blocks_are_returned_in_the_end() -> None:
    script = """
        import json
        import torch
        from onefold.retraining.allocator import KEEPING, SPARING, allocating, use_mode
        from onefold.retraining.memory_monitor import ProcessMemory

        def freed() -> int:
            blocks = [torch.ones(2**18) for _ in range(64)]  # 64 MiB
            del blocks
            return ProcessMemory().used()

        use_mode(SPARING)
        before = freed()
        with allocating(KEEPING):
            inside = freed()
        print(json.dumps([inside - before, ProcessMemory().used() - before]))
    """
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    ).stdout
    kept, left = json.loads(output)
    assert kept > 2**25
    assert left < 2**23
