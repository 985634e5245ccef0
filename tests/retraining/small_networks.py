"""Small networks of many architectures, with batches for each, and a count of live tensor bytes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformer_networks import CLASSES, WORDS, BertClassifier, EncoderNet, Logits, VisionTransformer

from onefold.retraining.memory_model import MemoryFootprint, step_memory
from onefold.retraining.memory_trace import StepTrace
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import RetrainingPlan

Batch = tuple[Tensor, ...]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the samples."""
    return functional.cross_entropy(outputs, targets)


class Residual(nn.Module):
    """Two convolutions with batch norms and a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        result = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(result)) + x)


class ResidualNet(nn.Module):
    """A residual network."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Inverted(nn.Module):
    """An inverted residual block with in-place activations."""

    def __init__(self, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 3 * narrow
        self.inside = nn.Sequential(
            nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow),
        )  # fmt: skip
        self.goes_around = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x) if self.goes_around else self.inside(x)


class InvertedNet(nn.Module):
    """An inverted-residual network."""

    def __init__(self, narrow: int = 6) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, narrow, 3, 2, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU6(inplace=True),
            Inverted(narrow, 1), Inverted(narrow, 2), Inverted(narrow, 1),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(narrow, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(self.features(x), 1), 1))


class Attending(nn.Module):
    """A transformer block, written with functional operations."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.triple, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.triple(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split[0], split[1], split[2]
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self._dropped(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self._dropped(self.narrower(functional.gelu(self.wider(self.norm2(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """A small transformer over tokens, with learned position embeddings as a bare parameter."""

    def __init__(self, width: int = 16, depth: int = 2, length: int = 6, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(0.1 * torch.randn(1, length, width))
        self.blocks = nn.ModuleList(Attending(width, 2, dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(WORDS, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words))
        return self.head(states[:, -1])


class Deciding(nn.Module):
    """A module with data-dependent control flow, which cannot be traced."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x).tanh() if x.sum() > 0 else self.other(x).tanh()


class DecidingNet(nn.Module):
    """A network that cannot be traced."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result = self.body(x)
        if result.abs().sum() > 1e6:
            result = result / 2
        return self.head(result.relu())


class PartlyDecidingNet(nn.Module):
    """A network that can be traced except for one child."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.deciding = nn.Linear(width, width), Deciding(width)
        self.second, self.head = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.deciding(self.first(x).relu())).relu())


def perceptron(width: int = 8, depth: int = 6) -> nn.Module:
    """Linear layers and activations: the gradient of a batch is the sum over its samples."""
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def normed(width: int = 8, depth: int = 3) -> nn.Module:
    """Linear layers with batch norms, which cannot train on a single sample."""
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def dropping(width: int = 16, depth: int = 4) -> nn.Module:
    """Linear layers with dropout as modules."""
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3))]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


@dataclass(frozen=True)
class Kind:
    """A network architecture and its sample shapes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    takes_words: bool = False

    def network(self, seed: int = 0) -> nn.Module:
        """Return a network, initialized from a seed."""
        torch.manual_seed(seed)
        return self.build()

    def batch(self, size: int, seed: int = 1) -> Batch:
        """Some samples, the targets last."""
        chance = torch.Generator().manual_seed(seed)
        targets = torch.randint(CLASSES, (size,), generator=chance)
        if self.takes_words:
            return torch.randint(WORDS, (size, *self.shape), generator=chance), targets
        return torch.randn(size, *self.shape, generator=chance), targets


KINDS = {
    "residual": Kind(ResidualNet, (3, 8, 8)),
    "inverted": Kind(InvertedNet, (3, 16, 16)),
    "transformer": Kind(lambda: Transformer(dropout=0.0), (6,), takes_words=True),
    "dropping transformer": Kind(Transformer, (6,), takes_words=True),
    "torch encoder": Kind(lambda: EncoderNet(is_masked=False), (6,), takes_words=True),
    "masked torch encoder": Kind(EncoderNet, (6,), takes_words=True),
    "image transformer": Kind(VisionTransformer, (3, 8, 8)),
    "BERT": Kind(lambda: Logits(BertClassifier), (6,), takes_words=True),
    "recurrent": Kind(Recurrent, (32,), takes_words=True),
    "deciding": Kind(DecidingNet, (8,)),
    "partly deciding": Kind(PartlyDecidingNet, (8,)),
    "perceptron": Kind(perceptron, (8,)),
    "normed": Kind(normed, (8,)),
    "dropping": Kind(dropping, (16,)),
}


def cut(batch: Batch, size: int) -> Iterator[Batch]:
    """Split a batch into batches of a size."""
    return zip(*(part.split(size) for part in batch))


class Alive(TorchDispatchMode):
    """Count the bytes of live tensors that were created inside the block."""

    def __init__(self, there: list[Tensor]) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._there = there
        self._known: dict[int, Any] = {item.untyped_storage()._cdata: None for item in there}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (place := tensor.untyped_storage()._cdata) not in self._known:
                storage = tensor.untyped_storage()
                self.bytes += storage.nbytes()
                self._known[place] = weakref.ref(storage, self._gone(place, storage.nbytes()))
        self.peak = max(self.peak, self.bytes)
        return result

    def _gone(self, place: int, size: int) -> Any:
        def gone(_: object) -> None:
            self.bytes -= size
            del self._known[place]

        return gone


def plan_footprint(trace: StepTrace, staged: StagedNetwork, plan: RetrainingPlan) -> MemoryFootprint:
    """Return the predicted footprint of a plan's tensors, without what libraries allocate."""
    return step_memory(trace, staged, staged.frozen_stages(plan.freeze_rate), plan.segments).footprint(plan)
