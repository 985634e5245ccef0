"""Export of real networks to ONNX."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onefold.serving.export import SAMPLES, check, difference, export, samples_beside
from onefold.serving.onnx_provenance import without_provenance
from onefold.serving.served_model import ServedModel
from onefold.serving.signature import architecture
from onefold.training.calls import export_network
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(4, 8, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x)[0][:, -1])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(10, 3), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.words(words).mean(1) + self.numbers(numbers)


class Bakes(nn.Module):
    """A network that traces the batch size as a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x).reshape(int(x.shape[0]), 2)


class Branches(Bakes):
    """A network that branches on the batch size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) if len(x) > 1 else 2 * self.last(x)


class Counts(Bakes):
    """A network with a constant of the length of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + torch.from_numpy(np.arange(len(x), dtype="f4"))[:, None]


class Exotic(nn.Module):
    """A network with an operator without ONNX equivalent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x.reshape(-1, 2, 2))


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(36, 5)
    )


NETWORKS = [
    pytest.param(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), [(9, 4)], id="dense"),
    pytest.param(pictures, [(9, 1, 8, 8)], id="convolutions"),
    pytest.param(lambda: Recurrent("LSTM"), [(9, 5, 4)], id="LSTM"),
    pytest.param(lambda: Recurrent("GRU"), [(9, 5, 4)], id="GRU"),
    pytest.param(lambda: Recurrent("RNN"), [(9, 5, 4)], id="RNN"),
]


def drawn(shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize(("build", "shapes"), NETWORKS)
def test_exported_model_agrees_at_every_batch_size(build, shapes, tmp_path: Path) -> None:
    network, samples = build(), drawn(shapes)
    path = export(network, samples, tmp_path / "deep" / "model.onnx")
    check(network, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 2, 9):
        feed = {f"input{index}": each[:count].numpy() for index, each in enumerate(samples)}
        with torch.no_grad():
            wanted = network.eval()(*(each[:count] for each in samples)).numpy()
        assert session.run(None, feed)[0] == pytest.approx(wanted, abs=1e-5)


def test_inputs_of_several_types(tmp_path: Path) -> None:
    network = TwoInputs()
    path = export(network, [np.arange(27).reshape(9, 3) % 10, np.ones((9, 4), "f4")], tmp_path / "two.onnx")
    check(network, path)
    graph = onnx.load(str(path)).graph
    assert [each.name for each in graph.input] == ["input0", "input1"]
    with np.load(samples_beside(path)) as kept:
        assert {name: (kept[name].shape, kept[name].dtype.kind) for name in kept.files} == {
            "input0": ((SAMPLES, 3), "i"),
            "input1": ((SAMPLES, 4), "f"),
        }


@dataclass
class Outputs:
    """Outputs as a dataclass."""

    hidden: torch.Tensor
    logits: torch.Tensor


class Named(nn.Module):
    """A network that returns its logits with other outputs."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.body, self.last, self.kind = nn.Linear(4, 8), nn.Linear(8, 2), kind

    def forward(self, x: torch.Tensor) -> Any:
        x = self.body(x)
        return self.kind(hidden=x, logits=self.last(x))


@pytest.mark.parametrize("kind", [dict, Outputs])
def test_all_tensors_of_a_mapping_or_dataclass_are_exported_by_name(kind: type, tmp_path: Path) -> None:
    network = Named(kind)
    path = export(network, [torch.randn(4, 4)], tmp_path / "model.onnx")
    check(network, path)
    assert {
        output.name: [at.dim_param or at.dim_value for at in output.type.tensor_type.shape.dim]
        for output in onnx.load(path).graph.output
    } == {"hidden": ["batch", 8], "logits": ["batch", 2]}


def test_only_the_batch_dimension_is_dynamic(tmp_path: Path) -> None:
    path = export(pictures(), drawn([(9, 1, 8, 8)]), tmp_path / "model.onnx")
    dimensions = onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value or dim.dim_param for dim in dimensions] == ["batch", 1, 8, 8]


def test_export_in_evaluation_mode(tmp_path: Path) -> None:
    path = export(pictures().train(), drawn([(9, 1, 8, 8)]), tmp_path / "model.onnx")
    assert "Dropout" not in {node.op_type for node in onnx.load(str(path)).graph.node}


def test_export_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    export(Recurrent("LSTM"), drawn([(3, 5, 4)]), tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_attention_is_exported_by_tracing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_slowly(*_: object) -> None:
        raise AssertionError("torch.export takes seconds")

    monkeypatch.setattr("onefold.serving.export._export_by_torch_export", export_slowly)
    network = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    check(network, export(network, drawn([(8, 5, 8)]), tmp_path / "model.onnx"))
    assert torch.backends.mha.get_fastpath_enabled()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO, logging.CRITICAL])
def test_export_restores_logging(tmp_path: Path, level: int) -> None:
    logging.disable(level)
    try:
        export(nn.Linear(2, 1), drawn([(3, 2)]), tmp_path / "model.onnx")
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", [Branches, Counts])
def test_dependence_on_the_batch_size_is_detected(
    kind: type[nn.Module], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        ModelError, match=r"outputs of the exported model differ from PyTorch.* branches on the data or on the batch"
    ):
        export(kind(), drawn([(8, 4)]), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    assert capfd.readouterr() == ("", "")


def test_network_that_computes_with_the_batch_size_is_exported_for_single_samples(tmp_path: Path) -> None:
    network, samples = Bakes(), drawn([(8, 4)])
    path = export(network, samples, tmp_path / "model.onnx")
    served = ServedModel(path, ServingPoint(4))
    assert served.model.batch_size == 1
    with torch.no_grad():
        assert served(samples[0].numpy()) == pytest.approx(network(samples[0]).numpy(), abs=1e-5)


class Nested(Bakes):
    """A network that returns tensors in a tuple with other values and a mapping."""

    def forward(self, x: torch.Tensor) -> Any:
        x = self.last(x)
        return x, {"classes": x.argmax(1), "nothing": None}, 3.0


def test_every_output_of_a_tuple_is_exported_and_compared(tmp_path: Path) -> None:
    network, samples = Nested(), drawn([(8, 4)])
    path = export(network, samples, tmp_path / "model.onnx")
    first, classes = ServedModel(path, ServingPoint(8))(samples[0].numpy())
    with torch.no_grad():
        expected = network(samples[0])
    assert first == pytest.approx(expected[0].numpy(), abs=1e-5)
    assert classes.tolist() == expected[1]["classes"].tolist()
    content = onnx.load(str(path))
    last = next(node for node in content.graph.node if node.op_type == "ArgMax")
    last.op_type = "ArgMin"
    onnx.save(content, str(path))
    assert difference(network, path) > 0.1


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_exports_have_no_stack_traces_or_local_paths(tmp_path: Path) -> None:
    network, inputs = pictures().eval(), tuple(drawn([(8, 1, 8, 8)]))
    program = torch.onnx.export(network, inputs, dynamo=True, verbose=False)
    program.save(str(tmp_path / "dynamo.onnx"))
    before = (tmp_path / "dynamo.onnx").read_bytes()
    assert b".py" in before
    without_provenance(tmp_path / "dynamo.onnx")
    content = (tmp_path / "dynamo.onnx").read_bytes()
    assert b".py" not in content
    assert len(content) < len(before) / 2


class Packed(nn.Module):
    """A network whose sequences have several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0][-1]


@pytest.mark.parametrize(
    ("network", "samples"),
    [
        (Exotic(), [torch.randn(8, 4)]),
        (Packed(), [torch.randn(8, 5, 3), torch.tensor([5, 3, 1, 2, 4, 5, 1, 2])]),
    ],
)  # fmt: skip
def test_network_that_cannot_be_exported_is_served_by_pytorch(
    network: nn.Module, samples: list[torch.Tensor], tmp_path: Path
) -> None:
    path = export_network(network, samples, tmp_path / "model.onnx")
    assert path == tmp_path / "model.pt"
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if str(Path(__file__).parent).encode() in archive.read(name)]
    served = ServedModel(path, ServingPoint(4, runtime="pytorch"))
    with torch.no_grad():
        expected = network(*samples).numpy()
    assert served(*(each.numpy() for each in samples)) == pytest.approx(expected, abs=1e-5)
    assert "cannot be exported to ONNX" in architecture(path).why_not_onnx
    again = export_network(network, samples, tmp_path / "again.onnx")
    assert architecture(again).signature == architecture(path).signature


def test_different_weights_are_detected(tmp_path: Path) -> None:
    network = nn.Linear(4, 2)
    path = export(network, drawn([(8, 4)]), tmp_path / "model.onnx")
    with torch.no_grad():
        network.weight += 1.0
    with pytest.raises(ModelError, match="outputs of the exported model differ"):
        check(network, path)


def test_outputs_that_are_nan_in_one_of_both_differ(tmp_path: Path) -> None:
    network = nn.Linear(4, 2)
    path = export(network, drawn([(8, 4)]), tmp_path / "model.onnx")
    with torch.no_grad():
        network.weight[0, 0] = torch.nan
    assert difference(network, path) == float("inf")
    path = export(network, drawn([(8, 4)]), tmp_path / "other.onnx")
    assert difference(network, path) < 1e-5


def test_unsupported_operator_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"cannot be exported to ONNX: .*aten::linalg_svdvals"):
        export(Exotic(), drawn([(8, 4)]), tmp_path / "model.onnx")
    assert capfd.readouterr().out == ""


def test_failing_network_reports_its_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be exported to ONNX: .*shapes cannot be multiplied"):
        export(nn.Linear(7, 2), drawn([(8, 4)]), tmp_path / "model.onnx")
