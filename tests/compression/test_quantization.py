"""Quantization of ONNX files, fake quantization, and the ONNX rewrites around them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onefold.compression.fake_quantization import fake_quantization
from onefold.compression.magnitude_pruning import PruningMasks
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.onnx_node_order import move_relu_before_max_pool
from onefold.compression.onnx_weights import operator_density, weight_sparsity
from onefold.compression.registry import method_named
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError, ModelError

IMAGES = torch.rand(64, 1, 12, 12)
SAMPLES = {"input0": IMAGES.numpy()}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 64, 32), nn.ReLU(), nn.Linear(32, 10),
    ).eval()  # fmt: skip


def quantize(
    source: Path, target: Path, precision: str, samples: dict[str, np.ndarray] | None = None
) -> tuple[str, ...]:
    return method_named(precision).compressor.compress_onnx(source, target, samples)


def outputs(path: Path, inputs: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"input0": inputs})[0]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(network(), [IMAGES], tmp_path_factory.mktemp("exact") / "exact.onnx")


@pytest.mark.parametrize(
    ("precision", "smaller", "close"),
    [
        ("int8", 3, 0.1),
        ("int8-dynamic", 2.5, 0.1),
        ("int8-weight-only", 3, 0.02),
        ("int4", 4.5, 0.2),
        ("fp16", 1.8, 0.01),
    ],
)
def test_a_quantized_model_is_smaller_and_computes_nearly_the_same(
    exact: Path, tmp_path: Path, precision: str, smaller: float, close: float
) -> None:
    path = tmp_path / "quantized.onnx"
    quantize(exact, path, precision, SAMPLES)
    assert path.stat().st_size * smaller < exact.stat().st_size
    wanted, got = outputs(exact, SAMPLES["input0"]), outputs(path, SAMPLES["input0"])
    assert np.abs(got - wanted).max() < close * np.abs(wanted).max()


def test_layers_that_cannot_be_quantized_are_named(exact: Path, tmp_path: Path) -> None:
    for precision in ("int8", "int8-dynamic"):
        assert quantize(exact, tmp_path / f"{precision}.onnx", precision, SAMPLES) == ()
    raised = onnx.load(str(exact))
    for node in raised.graph.node:
        if node.op_type == "Gemm":
            next(attribute for attribute in node.attribute if attribute.name == "alpha").f = 2.0
    path = tmp_path / "raised.onnx"
    onnx.save(raised, str(path))
    left = quantize(path, tmp_path / "left.onnx", "int8-dynamic")
    assert len(left) == 2
    assert all(name.startswith("Gemm") for name in left)


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_the_callers_log_level_is_restored(exact: Path, tmp_path: Path, level: int) -> None:
    logging.disable(level)
    try:
        quantize(exact, tmp_path / "quantized.onnx", "int8-dynamic")
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)


def test_dynamic_quantization_covers_lstm_layers(tmp_path: Path) -> None:
    class TextClassifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm, self.head = nn.Embedding(50, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.words(words))[0].amax(dim=1))

    words = torch.randint(0, 50, (64, 20))
    exact = export(TextClassifier(), [words], tmp_path / "exact.onnx")
    path = tmp_path / "dynamic.onnx"
    assert not any(name.startswith("LSTM") for name in quantize(exact, path, "int8-dynamic"))
    assert np.abs(outputs(path, words.numpy()) - outputs(exact, words.numpy())).max() < 0.1


@pytest.mark.parametrize("samples", [None, {}, {"input0": SAMPLES["input0"][:5]}])
def test_a_small_calibration_set_is_rejected(exact: Path, tmp_path: Path, samples) -> None:
    with pytest.raises(InputError, match="int8 needs a calibration set of at least 32 samples"):
        quantize(exact, tmp_path / "q.onnx", "int8", samples)


class Layers(nn.Module):
    """Linear layers of several sizes, with and without a bias, one of them too small for MatMulNBits."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.odd, self.last = nn.Linear(12, 400), nn.Linear(400, 70, bias=False), nn.Linear(70, 70)
        self.small = nn.Linear(70, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.small(self.last(self.odd(self.wide(images)).mean(dim=(1, 2))))


@pytest.mark.parametrize(("precision", "close"), [("int4", 0.25), ("int8-weight-only", 0.02)])
def test_blocks_of_weights_of_any_size_and_layout_are_dequantized_as_they_were_packed(
    tmp_path: Path, precision: str, close: float
) -> None:
    torch.manual_seed(0)
    layers = Layers()
    PruningMasks(layers).prune(0.5)
    exact, path = export(layers, [IMAGES], tmp_path / "exact.onnx"), tmp_path / "blocks.onnx"
    assert quantize(exact, path, precision) == ()
    kinds = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert kinds.count("MatMulNBits") == 3
    for count in (1, len(IMAGES)):  # the runtime has one kernel for vectors and another for matrices
        inputs = SAMPLES["input0"][:count]
        wanted = outputs(exact, inputs)
        assert np.abs(outputs(path, inputs) - wanted).max() < close * np.abs(wanted).max()
    assert weight_sparsity(path) >= 0.5


def test_weights_alone_are_quantized_while_activations_stay_in_full_precision(exact: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    assert quantize(exact, path, "int8-weight-only") == ()
    kinds = {node.op_type for node in onnx.load(str(path)).graph.node}
    assert kinds >= {"Conv", "MatMulNBits"}
    assert not any("Quantize" in kind or "Integer" in kind or kind.startswith("QLinear") for kind in kinds)


def test_a_narrow_network_stores_its_weights_in_int8_but_has_no_layer_for_int4(tmp_path: Path) -> None:
    inputs = torch.rand(8, 12)
    exact, path = export(nn.Linear(12, 50), [inputs], tmp_path / "exact.onnx"), tmp_path / "narrow.onnx"
    assert quantize(exact, path, "int8-weight-only") == ()
    stored = {tensor.data_type for tensor in onnx.load(str(path)).graph.initializer if list(tensor.dims) == [50, 12]}
    assert stored == {onnx.TensorProto.INT8}
    assert np.allclose(outputs(path, inputs.numpy()), outputs(exact, inputs.numpy()), atol=0.02)
    with pytest.raises(ModelError, match="no linear layer of at least 4,096 weights for int4; use int8-weight-only"):
        quantize(exact, path, "int4")


def test_weights_too_large_for_half_precision_are_rejected(tmp_path: Path) -> None:
    layer = nn.Linear(12, 12)
    nn.init.constant_(layer.weight, 1e6)
    exact = export(layer, [torch.rand(8, 12)], tmp_path / "exact.onnx")
    with pytest.raises(ModelError, match="too large for half precision"):
        quantize(exact, tmp_path / "half.onnx", "fp16")


def test_quantization_keeps_sparsity(tmp_path: Path) -> None:
    pruned = network()
    PruningMasks(pruned).prune(0.8)
    exact = export(pruned, [IMAGES], tmp_path / "exact.onnx")
    path = tmp_path / "int8.onnx"
    quantize(exact, path, "int8", SAMPLES)
    assert weight_sparsity(exact) == pytest.approx(0.8, abs=0.01)
    assert weight_sparsity(path) >= 0.8 - 0.01
    assert all(0 < share < 1 for share in operator_density(path).values())
    assert len(operator_density(path)) == 4


def test_quantization_aware_training_learns_and_unwraps_the_network() -> None:
    model = network().train()
    names = [name for name, _ in model.named_parameters()]
    weights = [id(weight) for weight in model.parameters()]
    seen = []
    model[3].register_forward_hook(lambda module, inputs, _: seen.append(module.weight.detach()))
    with fake_quantization(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(IMAGES), torch.arange(64) % 10)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert [name for name, _ in model.named_parameters()] == names
    assert [id(weight) for weight in model.parameters()] == weights, (
        "masks and optimizers hold references to the parameters"
    )
    first = seen[0][0]
    scale = first.abs().max() / 127
    assert torch.allclose((first / scale).round(), first / scale, atol=1e-3), "the forward pass used integers"


def test_stripping_metadata_keeps_the_outputs(exact: Path, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    quantize(exact, path, "int8", SAMPLES)
    wanted, size, dense = outputs(path, SAMPLES["input0"]), path.stat().st_size, len(operator_density(path))
    strip_metadata(path)
    assert path.stat().st_size < size
    assert np.array_equal(outputs(path, SAMPLES["input0"]), wanted)
    assert len(operator_density(path)) == dense


def test_a_relu_moves_before_max_pooling(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 10)).eval()
    exact = export(pooled, [IMAGES], tmp_path / "exact.onnx")
    model = onnx.load(str(exact))
    move_relu_before_max_pool(model)
    assert [node.op_type for node in model.graph.node][:3] == ["Conv", "Relu", "MaxPool"]
    path = tmp_path / "reordered.onnx"
    onnx.save(model, str(path))
    assert np.array_equal(outputs(path, SAMPLES["input0"]), outputs(exact, SAMPLES["input0"]))
    quantize(exact, path, "int8", SAMPLES)
    wanted = outputs(exact, SAMPLES["input0"])
    assert np.abs(outputs(path, SAMPLES["input0"]) - wanted).max() < 0.2 * np.abs(wanted).max()


def test_a_pooling_with_several_consumers_stays_in_place(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            pooled = nn.functional.max_pool2d(images - 0.5, 2)
            return pooled + pooled.relu()

    exact = export(Both(), [IMAGES], tmp_path / "exact.onnx")
    model = onnx.load(str(exact))
    before = [node.op_type for node in model.graph.node]
    move_relu_before_max_pool(model)
    assert [node.op_type for node in model.graph.node] == before
