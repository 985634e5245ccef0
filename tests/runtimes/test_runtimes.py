"""All runtimes pass the contract; those that are not installed are skipped with the reason."""

from __future__ import annotations

import pytest
from runtime_contract import RuntimeContract

from onefold.runtimes.registry import RUNTIMES
from onefold.runtimes.runtime import Runtime


class TestOnnxRuntime(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["onnxruntime"]


class TestPytorch(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["pytorch"]


class TestOpenvino(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["openvino"]


class TestNcnn(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["ncnn"]


@pytest.mark.slow
class TestLitert(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["litert"]


@pytest.mark.slow
class TestExecutorch(RuntimeContract):
    @pytest.fixture
    def runtime(self) -> Runtime:
        return RUNTIMES["executorch"]
