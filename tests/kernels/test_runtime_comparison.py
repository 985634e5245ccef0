"""Which runtimes are compared, and which of them are timed once more before one is recommended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.kernels.runtime_comparison import CLOSE, race, still_close
from onefold.vocabulary.serving import LatencySource, ServingPoint


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


@pytest.mark.parametrize(
    ("threads", "most", "names"),
    [
        (1, 2, {"tvm", "onnxruntime"}),
        (2, 2, {"tvm", "onnxruntime", "onnxruntime spinning"}),
        (4, 2, {"tvm", "onnxruntime"}),  # threads that spin for the same cores say nothing
    ],
)  # fmt: skip
def test_with_several_threads_onnxruntime_is_timed_both_ways(
    threads: int, most: int, names: set[str], tmp_path: Path
) -> None:
    served: list[ServingPoint] = []

    def serve(file: Path, point: ServingPoint, effort: Any) -> Any:
        served.append(point)
        return SimpleNamespace(latency_s=1.0 if point.waiting == "spinning" else 3.0, source=LatencySource.MEASURED)

    whole: Any = SimpleNamespace(timed=lambda library: SimpleNamespace(latency_s=2.0))
    session: Any = SimpleNamespace(threads=most, prepare=lambda *_: None, serve=serve)
    opened: Any = SimpleNamespace(name="mine", file=tmp_path / "model.onnx", many=None)
    found = race(whole, tmp_path / "mine.so", opened, session, tmp_path, ServingPoint(1, threads))
    assert {one.name for one in found.runtimes} == names
    assert {point.threads for point in served} == {threads}
    assert found.recommended == ("onnxruntime spinning" if "onnxruntime spinning" in names else "tvm")
