"""Conversion of models, and which runtimes may be asked for."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from onefold.runtimes.conversion import convert_model
from onefold.runtimes.onnx_network import OnnxNetwork
from onefold.runtimes.registry import RUNTIMES, selected_runtimes
from onefold.runtimes.runtime import Source
from onefold.runtimes.source_models import open_source
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError, MissingExtra, ModelError


def test_runtime_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("onefold.runtimes.registry.version", missing)
    with pytest.raises(MissingExtra, match=r"ncnn is not installed; install it with: pip install 'onefold\[ncnn\]'"):
        selected_runtimes(["ncnn"])
    assert selected_runtimes(["all"]) == tuple(RUNTIMES)


def test_unknown_runtime_suggests_the_closest() -> None:
    with pytest.raises(InputError, match="unknown runtime 'openvno'; did you mean 'openvino'"):
        selected_runtimes(["openvno"])


def test_conversion_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Celu", ["x"], ["y"])], "g", [value], [made])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(content, str(tmp_path / "model.onnx"))
    reference, failed = convert_model(tmp_path / "model.onnx", ["onnxruntime", "pytorch"])
    assert not reference.reason
    assert failed.reason == "the converter has no equivalent of the ONNX operators Celu"
    assert not (tmp_path / "model.pt").exists()


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.layer = getattr(nn, kind)(4, 6, batch_first=True, bidirectional=True)
        self.last = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(self.words(x))[0][:, -1])


def pixels() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1), nn.BatchNorm2d(8), nn.Hardswish(), nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("network", "samples"),
    [
        (pixels(), torch.randn(8, 3, 16, 16)),
        *((Recurrent(kind), torch.randint(0, 9, (8, 5))) for kind in ("LSTM", "GRU", "RNN")),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1), torch.randn(8, 5, 8)),
    ],
    ids=["pixels", "LSTM", "GRU", "RNN", "transformer"],
)
def test_pytorch_computes_the_graph_of_a_model(network: nn.Module, samples: torch.Tensor, tmp_path: Path) -> None:
    path = export(network, [samples], tmp_path / "model.onnx")
    with torch.no_grad():
        answered = OnnxNetwork.read(path)(samples[:1])
        np.testing.assert_allclose(answered.numpy(), network.eval()(samples[:1]).numpy(), atol=1e-5)


def test_networks_without_onnx_file_are_not_converted(tmp_path: Path) -> None:
    source = Source(tmp_path / "model.pt", (), (), (), ())
    for name in ("openvino", "ncnn", "onnxruntime", "litert", "executorch"):
        with pytest.raises(ModelError, match="ONNX"):
            RUNTIMES[name].convert(source)


def test_model_without_samples_is_converted_with_random_ones(tmp_path: Path) -> None:
    path = export(nn.Linear(4, 2), [torch.randn(8, 4)], tmp_path / "model.onnx")
    path.with_suffix(".npz").unlink()
    source = open_source(path)
    assert [argument.shape for argument in (*source.inputs, *source.outputs)] == [(None, 4), (None, 2)]
