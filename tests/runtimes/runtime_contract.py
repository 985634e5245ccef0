"""The contract of `onefold.runtimes.runtime.Runtime`: subclass `RuntimeContract` and give it a runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from onefold.agent.forms import form_from_json, form_to_json
from onefold.agent.loaded_model import run_batch
from onefold.runtimes.registry import missing_package
from onefold.runtimes.runtime import Runtime, files_of
from onefold.runtimes.source_models import open_source
from onefold.serving.export import export
from onefold.vocabulary.serving import ServingPoint


class WordsAndPixels(nn.Module):
    """A network with two inputs, of integers and of floats, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.pixels = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Linear(4 * 16 + 5 * 6, 3)

    def forward(self, words: torch.Tensor, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.cat([self.pixels(pixels).flatten(1), self.words(words).flatten(1)], 1)
        return self.last(features), features


class RuntimeContract:
    """Tests that every implementation of `Runtime` passes, if its packages are installed."""

    @pytest.fixture
    def runtime(self) -> Runtime:
        """Return the runtime."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def installed(self, runtime: Runtime) -> None:
        if package := missing_package(runtime):
            pytest.skip(f"{package} is not installed; the extra {runtime.extra} has it")

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        torch.manual_seed(0)
        network = WordsAndPixels()
        return export(network, [torch.randint(0, 20, (8, 5)), torch.randn(8, 1, 8, 8)], tmp_path / "model.onnx")

    @pytest.mark.filterwarnings("ignore")  # converters warn
    def test_a_converted_model_answers_alike(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        source = open_source(model)
        form = runtime.convert(source)
        files = files_of(form, tmp_path)
        assert [file.name for file in files] == [f"model{suffix}" for suffix in runtime.suffixes]
        assert form_from_json(form_to_json(form)) == form
        for point in (ServingPoint(runtime=runtime.name), ServingPoint(threads=2, runtime=runtime.name)):
            loaded = runtime.open(files, point, form)
            assert [argument.name for argument in loaded.inputs] == ["input0", "input1"]
            for count in (1, 3, 8):
                outputs = run_batch(loaded, [array[:count] for array in source.samples])
                for output, expected in zip(outputs, source.expected, strict=True):
                    assert output.dtype == expected.dtype
                    np.testing.assert_allclose(output, expected[:count], atol=1e-4)
            kept = run_batch(loaded, [array[:1] for array in source.samples])
            before = [output.copy() for output in kept]
            run_batch(loaded, [array[1:2] for array in source.samples])
            for output, expected in zip(kept, before, strict=True):  # outputs are not views of reused memory
                np.testing.assert_array_equal(output, expected)
        content = b"".join(file.read_bytes() for file in files)
        assert str(tmp_path).encode() not in content
        assert Path(__file__).name.encode() not in content
