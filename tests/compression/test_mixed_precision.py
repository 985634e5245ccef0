"""Mixed precision: the order of reductions, the requirements, and the files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from onefold.compression.compressor import CompressedGraph
from onefold.compression.encoding import ENCODINGS, pack
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.precision_plan import LayerOption, precisions_after, reduction_steps
from onefold.compression.registry import method_named
from onefold.compression.requirements import Requirements
from onefold.compression.step_search import MAX_SCANNED, first_by_scan
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.requirement import at_most

IMAGES = torch.rand(64, 1, 12, 12, generator=torch.Generator().manual_seed(1))
WORDS = torch.randint(1, 200, (64, 16), generator=torch.Generator().manual_seed(0))
REDUCED = st.lists(st.tuples(st.floats(0.1, 0.9), st.floats(0, 1)), max_size=3)
LAYERS = st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(1, 10**6), REDUCED), max_size=5)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
    ).eval()  # fmt: skip


class Encoder(nn.Module):
    """A transformer encoder whose first feed-forward layer has outliers, which leave other weights no resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 4)
        with torch.no_grad():
            self.layer.linear1.weight[:, ::32] += 30
            self.layer.linear1.bias -= 30 * torch.ones(128)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.words(words)).mean(dim=1))


@pytest.fixture(scope="module")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    return export(cnn(), [IMAGES], tmp_path_factory.mktemp("cnn") / "cnn.onnx"), {"input0": IMAGES.numpy()}


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    return export(Encoder().eval(), [WORDS], tmp_path_factory.mktemp("text") / "text.onnx"), {"input0": WORDS.numpy()}


def reduce(
    model: tuple[Path, dict[str, np.ndarray]], target: Path, requirements: Requirements | None = None
) -> CompressedGraph:
    source, samples = model
    compressor = method_named("mixed").compressor
    graph = compressor.compress_within(source, target, samples, requirements or Requirements())
    strip_metadata(target)
    return graph


def outputs(path: Path, samples: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, samples)[0]


def change(model: tuple[Path, dict[str, np.ndarray]], path: Path) -> float:
    exact = outputs(*model)
    return float(np.linalg.norm(outputs(path, model[1]) - exact) / np.linalg.norm(exact))


def packed_bytes(path: Path) -> int:
    return min(len(pack(path.read_bytes(), name)) for name in ENCODINGS)


def reduced(graph: CompressedGraph) -> set[str]:
    return {layer.layer for layer in graph.layers if layer.precision != "fp32"}


@given(LAYERS)
def test_each_step_makes_the_model_smaller_at_the_least_change_per_byte(layers: dict) -> None:
    options = {
        name: [LayerOption("fp32", size), *(LayerOption(f"p{i}", size * share, c) for i, (share, c) in enumerate(more))]
        for name, (size, more) in layers.items()
    }
    steps = reduction_steps(options)
    current = {name: choices[0] for name, choices in options.items()}
    for step in steps:
        assert step.option.bytes < current[step.layer].bytes
        costs = {
            (name, each.precision): max(0.0, each.change - current[name].change) / (current[name].bytes - each.bytes)
            for name, choices in options.items()
            for each in choices
            if each.bytes < current[name].bytes
        }
        assert costs[step.layer, step.option.precision] == min(costs.values())
        current[step.layer] = step.option
    assert all(current[name].bytes == min(each.bytes for each in choices) for name, choices in options.items())
    assert precisions_after(steps) == {name: current[name].precision for name in options if len(options[name]) > 1}


@pytest.mark.parametrize("fixture", ["image_model", "text_model"])
def test_a_model_just_meets_the_size_that_is_required(
    fixture: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(fixture)
    whole, path = packed_bytes(model[0]), tmp_path / "mixed.onnx"
    before: set[str] = set()
    sizes, changes = [], []
    for share in (0.8, 0.5, 0.35):
        graph = reduce(model, path, Requirements({"encoded_bytes": at_most(share * whole)}))
        assert packed_bytes(path) <= share * whole
        assert before <= reduced(graph), "a tighter requirement reduces more layers"
        assert all(layer.why for layer in graph.layers)
        before = reduced(graph)
        sizes.append(packed_bytes(path))
        changes.append(change(model, path))
    assert all(first > second for first, second in pairwise(sizes))
    assert changes[0] < changes[-1]


def test_a_sensitive_layer_keeps_its_precision(text_model: tuple, tmp_path: Path) -> None:
    graph = reduce(text_model, tmp_path / "mixed.onnx")
    kept = [layer.layer for layer in graph.layers if layer.precision == "fp32"]
    assert any("linear1" in layer for layer in kept)
    assert change(text_model, tmp_path / "mixed.onnx") <= 0.02
    uniform = tmp_path / "uniform.onnx"
    method_named("int8-weight-only").compressor.compress_onnx(text_model[0], uniform, None)
    assert change(text_model, uniform) > change(text_model, tmp_path / "mixed.onnx")


def test_a_required_latency_takes_precisions_with_integer_kernels(image_model: tuple, tmp_path: Path) -> None:
    path = tmp_path / "mixed.onnx"

    def count_exact_layers(model: Path) -> float:
        """Stand in for a device on which every layer in full precision takes a second."""
        kinds = [node.op_type for node in onnx.load(str(model)).graph.node]
        integers = kinds.count("MatMulInteger") + kinds.count("DequantizeLinear") // 5
        return 4.0 - min(4, integers)

    graph = reduce(image_model, path, Requirements({"latency_s": at_most(3.5)}, count_exact_layers))
    assert count_exact_layers(path) <= 3.5
    assert {layer.precision for layer in graph.layers} <= {"fp32", "int8", "int8-dynamic"}
    assert 0 < len(reduced(graph)) < 4
    both = Requirements({"latency_s": at_most(3.5), "size_bytes": at_most(15_000)}, count_exact_layers)
    graph = reduce(image_model, path, both)
    assert path.stat().st_size <= 15_000
    assert {layer.precision for layer in graph.layers} <= {"fp32", "int8", "int8-dynamic", "int4"}


def test_a_latency_that_integer_kernels_make_longer_is_met_without_them(image_model: tuple, tmp_path: Path) -> None:
    def count_integer_layers(model: Path) -> float:
        """Stand in for a device on which every quantized layer takes a second longer."""
        kinds = [node.op_type for node in onnx.load(str(model)).graph.node]
        return 1.0 + kinds.count("MatMulInteger") + kinds.count("DequantizeLinear")

    path = tmp_path / "mixed.onnx"
    assert not reduced(reduce(image_model, path, Requirements({"latency_s": at_most(1.2)}, count_integer_layers)))
    both = Requirements({"latency_s": at_most(0.5), "encoded_bytes": at_most(1e9)}, count_integer_layers)
    with pytest.raises(ModelError, match=r"cannot meet .*latency_s<=0.50 s: at its fastest, with 0 of 4 layers"):
        reduce(image_model, path, both)


@pytest.mark.parametrize("last", [0, 1, 23, 24, 300])
def test_a_scan_finds_the_first_step_even_if_later_ones_are_worse(last: int) -> None:
    evaluated: list[int] = []

    def holds_until(end: int) -> Callable[[int], bool]:
        return lambda number: evaluated.append(number) or number <= end  # type: ignore[func-returns-value]

    assert first_by_scan(0, last, holds_until(0)) == 0
    assert evaluated == [0]
    assert first_by_scan(0, last, lambda number: number == last) == last
    assert first_by_scan(0, last, lambda number: number >= last / 2) == (last + 1) // 2
    evaluated.clear()
    assert first_by_scan(0, last, holds_until(-1)) == last + 1
    assert len(evaluated) == min(last + 1, MAX_SCANNED)


def test_a_size_that_is_out_of_reach_is_refused(image_model: tuple, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot meet encoded_bytes<=100 B: with every layer reduced, the model has"):
        reduce(image_model, tmp_path / "mixed.onnx", Requirements({"encoded_bytes": at_most(100)}))


def test_a_requirement_that_is_met_already_reduces_nothing(image_model: tuple, tmp_path: Path) -> None:
    graph = reduce(image_model, tmp_path / "mixed.onnx", Requirements({"encoded_bytes": at_most(1e9)}))
    assert not reduced(graph)
    assert change(image_model, tmp_path / "mixed.onnx") < 1e-5


def test_sensitivity_needs_samples(image_model: tuple, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mixed needs a calibration set of at least 32 samples"):
        method_named("mixed").compressor.compress_onnx(image_model[0], tmp_path / "mixed.onnx", None)
