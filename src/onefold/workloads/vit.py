"""A small vision transformer (Dosovitskiy et al. 2021): a picture as a sequence of patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets

PATCH, SIDE = 4, 32


class Attention(nn.Module):
    """Each patch looks at all others, in several ways at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.asks = nn.Linear(width, 3 * width)
        self.answers = nn.Linear(width, width)

    def forward(self, patches: Tensor) -> Tensor:
        """(N, patches, width) to the same."""
        count, length, width = patches.shape
        parts = self.asks(patches).reshape(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.answers(seen.transpose(1, 2).reshape(count, length, width))
        return result


class Block(nn.Module):
    """Attention, then two layers for each patch by itself."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """(N, patches, width) to the same."""
        patches = patches + self.attention(self.first(patches))
        result: Tensor = patches + self.layers(self.second(patches))
        return result


class VisionTransformer(nn.Module):
    """Patches, their places, blocks, and the mean of what they say."""

    def __init__(self, config: Config, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2, config.width) * 0.02)
        self.blocks = nn.Sequential(*(Block(config.width, config.heads, config.dropout) for _ in range(config.depth)))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, classes))

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, 32, 32) to (N, classes) logits."""
        seen = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        logits: Tensor = self.head(seen.mean(dim=1))
        return logits


class Cifar10Vit(Workload):
    """Colour photographs of ten kinds of things, by a transformer."""

    space = Space(
        model=dict(
            width=Choice(64, 96, 128, default=96),
            depth=Int(2, 8, default=4),
            heads=Choice(2, 4, default=4),
            dropout=Float(0.0, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, default=64),
            optimizer=Choice("adam", "adamw", default="adamw"),
            lr=Float(1e-4, 1e-2, log=True, default=1e-3),
            weight_decay=Float(1e-6, 1e-1, log=True, default=1e-2),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return VisionTransformer(config, classes=10)

    def data(self) -> Data:
        return datasets.cifar10()
