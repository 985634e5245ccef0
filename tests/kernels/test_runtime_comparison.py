"""Which runtimes are compared, and which are timed again before one is recommended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.kernels.runtime_comparison import CLOSE, compare_runtimes, contenders
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
def test_runtimes_close_to_the_fastest_are_timed_again(times: dict[str, list[float]], near: list[str]) -> None:
    assert contenders(times) == near


@pytest.mark.parametrize(
    ("threads", "most", "names"),
    [
        (1, 2, {"tvm", "onnxruntime"}),
        (2, 2, {"tvm", "onnxruntime", "onnxruntime spinning"}),
        (4, 2, {"tvm", "onnxruntime"}),  # more spinning threads than cores are meaningless
    ],
)  # fmt: skip
def test_with_several_threads_onnxruntime_is_timed_both_ways(
    threads: int, most: int, names: set[str], tmp_path: Path
) -> None:
    served: list[ServingPoint] = []

    def serve(file: Path, point: ServingPoint, budget: Any) -> Any:
        served.append(point)
        return SimpleNamespace(latency_s=1.0 if point.waiting == "spinning" else 3.0, source=LatencySource.MEASURED)

    compiler: Any = SimpleNamespace(time_library=lambda library: SimpleNamespace(latency_s=2.0))
    session: Any = SimpleNamespace(threads=most, prepare=lambda *_: None, serve=serve)
    opened: Any = SimpleNamespace(name="mine", file=tmp_path / "model.onnx", calibration=None)
    result = compare_runtimes(compiler, tmp_path / "mine.so", opened, session, tmp_path, ServingPoint(1, threads))
    assert {runtime.name for runtime in result.runtimes} == names
    assert {point.threads for point in served} == {threads}
    assert result.recommended == ("onnxruntime spinning" if "onnxruntime spinning" in names else "tvm")
