"""Finding and growing the head of classifiers of many architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold.training.classification_head import ClassificationHead, find_head, head_named
from onefold.vocabulary.errors import InputError

CLASSES = 4


class Wrapped(nn.Module):
    """A network whose head is followed by a log-softmax, and preceded by a layer as wide as the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.narrow = nn.Linear(6, CLASSES), nn.Linear(CLASSES, CLASSES)
        self.last = nn.Linear(CLASSES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(self.last(self.narrow(self.first(x).relu()).relu()), 1)


class Dense(nn.Module):
    """A segmentation network: a class per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


class PerToken(nn.Module):
    """A class per token, with the classes in the second dimension of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).transpose(1, 2)


class Tied(nn.Module):
    """A head whose weights are also an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, 5), nn.Linear(5, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def pooled() -> nn.Module:
    """Return a network with a convolution as head, pooled afterward as in SqueezeNet."""
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


FOUND: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)), (6,), "2"),
    "log-softmax": (Wrapped, (6,), "last"),
    "pooled": (pooled, (3, 8, 8), "2"),
    "dense": (Dense, (3, 8, 8), "head"),
    "per token": (PerToken, (7, 5), "head"),
}


@pytest.mark.parametrize("kind", FOUND)
def test_the_head_is_found_grown_and_given_back(kind: str) -> None:
    build, shape, name = FOUND[kind]
    torch.manual_seed(0)
    network, inputs = build().eval(), torch.randn(3, *shape)
    given = {key: value.clone() for key, value in network.state_dict().items()}
    before = network(inputs)
    head = find_head(network, [inputs], CLASSES)
    assert head is not None
    assert head.name == name
    assert all(torch.equal(value, given[key]) for key, value in network.state_dict().items())

    described = str(head.module)
    grown = head.grow(CLASSES + 2)
    assert network(inputs).shape == (3, CLASSES + 2, *before.shape[2:])
    assert torch.equal(grown.weight[:CLASSES], given[f"{name}.weight"])
    assert grown.old_classes == CLASSES
    with grown.masked():
        masked = network(inputs)
    assert torch.equal(masked.argmax(1), before.argmax(1))
    torch.testing.assert_close(masked[:, :CLASSES], before, atol=1e-3, rtol=1e-3)
    assert str(head.module) != described

    grown.give_back()
    assert torch.equal(network(inputs), before)
    assert str(head.module) == described


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(6, CLASSES), nn.Linear(CLASSES, CLASSES), nn.LayerNorm(CLASSES)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, CLASSES))),
        nn.Sequential(nn.Conv1d(1, CLASSES, 6), nn.Flatten()),
    ],
)
def test_what_is_no_plain_head_is_not_taken_for_one(network: nn.Module) -> None:
    inputs = torch.randn(2, 6)[:, None] if isinstance(network[0], nn.Conv1d) else torch.randn(2, 6)  # type: ignore[index]
    assert find_head(network.eval(), [inputs], CLASSES) is None


def test_weights_that_are_shared_are_not_grown() -> None:
    assert find_head(Tied().eval(), [torch.zeros(2, 3, dtype=torch.long)], CLASSES) is None


def test_a_head_is_opened_only_as_large_as_its_weights() -> None:
    network = nn.Sequential(nn.Linear(8, CLASSES))
    assert head_named(network, "0", 6, weight_bytes=200).grow(6).classes == 6
    for name, classes, why in (("1", 9, "no linear layer of that name"), ("0", 10**9, "cannot have 1000000000")):
        with pytest.raises(InputError, match=why):
            head_named(network, name, classes, weight_bytes=1000)


def test_growing_keeps_what_is_trainable() -> None:
    layer = nn.Linear(3, CLASSES)
    layer.weight.requires_grad_(False)
    grown = ClassificationHead("", layer).grow(CLASSES + 1)
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad
    assert float(grown.weight[CLASSES:].abs().sum()) == 0
