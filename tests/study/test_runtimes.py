"""Which runtimes are timed once more before one is recommended."""

from __future__ import annotations

import pytest

from onefold.study.runtimes import CLOSE, still_close


@pytest.mark.parametrize(
    ("times", "near"),
    [
        ({"tvm": [1.0, 1.3], "onnxruntime": [2.0]}, []),
        ({"tvm": [1.3, 1.0], "onnxruntime": [9.0, 1.1]}, ["tvm", "onnxruntime"]),
        ({"tvm": [3.0], "onnxruntime": [1.0], "onnxruntime int8": [CLOSE]}, ["onnxruntime", "onnxruntime int8"]),
        ({"tvm": [1.0]}, []),
    ],
)  # fmt: skip
def test_those_that_are_close_to_the_fastest_are_timed_again(times: dict[str, list[float]], near: list[str]) -> None:
    assert still_close(times) == near
