"""Shapes that are constants do not have to be computed, and models compute the same without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onefold.serving import shape_folding
from onefold.serving.export import difference, export
from onefold.serving.shape_folding import fold_shapes

WORDS = torch.randint(1, 100, (8, 16), generator=torch.Generator().manual_seed(0))
WORDS[::3, 10:] = 0  # padding


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(words), src_key_padding_mask=words == 0)[:, 0])


class Flattening(nn.Module):
    """A network that reshapes by its batch size, in the first place and in the last."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        count = words.shape[0]
        columns = words.float().reshape(count, 4, 4).permute(1, 2, 0).reshape(4, 4 * count)
        return columns.reshape(4, 4, count).permute(2, 0, 1).reshape(count, -1) / words.shape[1] ** 0.5


class Selecting(nn.Module):
    """A network some of whose shapes depend on the data."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        kept = words.float()[words > 50]
        return words.float() + kept.reshape(1, -1, 1).sum() / kept.shape[0]


def weights(path: Path) -> set[str]:
    initializers = onnx.load(str(path)).graph.initializer
    return {tensor.name for tensor in initializers if tensor.data_type == onnx.TensorProto.FLOAT}


def kinds(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


@pytest.mark.parametrize("network", [Encoder(), Flattening(), Selecting()], ids=lambda each: type(each).__name__)
def test_outputs_are_those_of_the_network_at_every_batch_size(network: nn.Module, tmp_path: Path) -> None:
    path = export(network.eval(), [WORDS], tmp_path / "model.onnx")
    assert difference(network, path) < 1e-5
    more = torch.cat([WORDS] * 4)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (more[:1], more[:5], more):
        wanted = network(batch).detach().numpy()
        assert np.allclose(session.run(None, {"input0": batch.numpy()})[0], wanted, atol=1e-4)


def test_attention_computes_few_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = Encoder().eval()
    folded = kinds(export(network, [WORDS], tmp_path / "folded.onnx"))
    monkeypatch.setattr(shape_folding, "SOURCES", ())
    plain = kinds(export(network, [WORDS], tmp_path / "plain.onnx"))
    assert plain["Shape"] > 10
    assert folded["Shape"] < 0.4 * plain["Shape"]
    assert folded.total() - folded["Constant"] < 0.6 * (plain.total() - plain["Constant"])
    assert weights(tmp_path / "folded.onnx") == weights(tmp_path / "plain.onnx"), "weights can still be exchanged"


def test_a_graph_whose_shapes_depend_on_data_is_left_unchanged(tmp_path: Path) -> None:
    path = export(Selecting().eval(), [WORDS], tmp_path / "model.onnx")
    before = path.read_bytes()
    fold_shapes(path, {"input0": WORDS.numpy()})
    assert path.read_bytes() == before
    assert kinds(path)["NonZero"]


def test_a_graph_without_shapes_is_left_unchanged(tmp_path: Path) -> None:
    path = export(nn.Linear(16, 4).eval(), [WORDS.float()], tmp_path / "model.onnx")
    before = path.read_bytes()
    fold_shapes(path, {"input0": WORDS.float().numpy()})
    assert path.read_bytes() == before
