"""New weights in an ONNX file: equal to those of the network, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from onefold.serving.export import difference, export, samples_beside
from onefold.serving.weight_exchange import Initializer, WeightExchange, initializers


class Residual(nn.Module):
    """Two convolutions with BatchNorm of the same shape, and an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.head = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norms[0](self.first(images)))
        return self.head((images + self.norms[1](self.second(features))).mean((2, 3)))


class Attention(nn.Module):
    """Matrices that the exporter transposes, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 5, 8))
        self.mixed, self.norm, self.out = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mixed(self.norm(tokens + self.place)).chunk(3, -1)
        return self.out((query @ key.transpose(1, 2) * 8**-0.5).softmax(-1) @ value)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs)))


def perturb(network: nn.Module) -> None:
    """Change all weights and statistics."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
        for norm in network.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.normal_()  # type: ignore[union-attr,operator]
                norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr,operator]


def exported(network: nn.Module, sample: torch.Tensor, folder: Path) -> Path:
    perturb(network)
    return export(network, [sample], folder / "model.onnx")


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (8, 4, 6, 6)),
    "attention": (Attention, (8, 5, 8)),
    "tied": (Tied, (8, 6)),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_file_answers_as_the_network_after_training(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[kind]
    network = make().eval()
    path = exported(network, torch.randn(shape), tmp_path)
    exchange = WeightExchange.of(network, path)
    assert exchange is not None
    perturb(network)
    assert difference(network, path) > 0.01
    target = tmp_path / "new.onnx"
    shutil.copy(samples_beside(path), samples_beside(target))
    assert exchange.fits(network)
    exchange.write(target)
    assert target.stat().st_size == path.stat().st_size
    assert difference(network, target) < 1e-5


def test_weights_that_the_exporter_merged_are_not_exchanged(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    network[2].load_state_dict(network[0].state_dict())  # equal now, and different after training
    path = export(network, [torch.randn(8, 4)], tmp_path / "model.onnx")
    if len([entry for entry in _initializers(path) if len(entry.shape) == 2]) == 1:
        assert WeightExchange.of(network, path) is None


def test_weights_that_the_exporter_reorders_are_not_exchanged(tmp_path: Path) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(3, 4, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.memory(inputs)[0]
            return outputs

    network = Recurrent().eval()
    assert WeightExchange.of(network, export(network, [torch.randn(8, 5, 3)], tmp_path / "model.onnx")) is None


def test_a_file_of_other_weights_is_not_exchanged(tmp_path: Path) -> None:
    network = Residual().eval()
    path = exported(network, torch.randn(8, 4, 6, 6), tmp_path)
    perturb(network)
    assert WeightExchange.of(network, path) is None


def test_a_network_whose_layers_were_replaced_does_not_fit(tmp_path: Path) -> None:
    network = Residual().eval()
    exchange = WeightExchange.of(network, exported(network, torch.randn(8, 4, 6, 6), tmp_path))
    assert exchange is not None
    network.head = nn.Linear(4, 5)
    assert not exchange.fits(network)


@pytest.mark.parametrize("content", [b"", b"not an ONNX file at all", b"\x3a\xff\xff\x03", b"\xff" * 40])
def test_a_damaged_file_is_not_exchanged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    assert WeightExchange.of(nn.Linear(2, 2), tmp_path / "model.onnx") is None


def _initializers(path: Path) -> list[Initializer]:
    with path.open("rb") as file:
        return list(initializers(file))
