"""A small vision transformer (Dosovitskiy et al. 2021) for CIFAR-10."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets

PATCH, SIDE = 4, 32
RENAMED_PARAMETERS = {"asks.": "qkv.", "answers.": "projection.", "places": "position_embedding"}


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (N, tokens, width) to the same shape."""
        count, length, width = tokens.shape
        qkv = self.qkv(tokens).reshape(count, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.projection(attended.transpose(1, 2).reshape(count, length, width))
        return result


class EncoderBlock(nn.Module):
    """A pre-norm transformer encoder block: attention, then an MLP, each with a residual connection.

    `expansion` is the width of the MLP relative to that of the block; without `dropout` there is no such layer.
    """

    def __init__(self, width: int, heads: int, dropout: float | None = None, expansion: int = 2) -> None:
        super().__init__()
        inner = expansion * width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        dropouts = [] if dropout is None else [nn.Dropout(dropout)]
        self.layers = nn.Sequential(nn.Linear(width, inner), nn.GELU(), *dropouts, nn.Linear(inner, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (N, tokens, width) to the same shape."""
        tokens = tokens + self.attention(self.first(tokens))
        result: Tensor = tokens + self.layers(self.second(tokens))
        return result


class VisionTransformer(nn.Module):
    """Patch embedding, learned position embedding, encoder blocks, mean pooling and a linear head."""

    def __init__(self, config: Config, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, PATCH, PATCH)
        self.position_embedding = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2, config.width) * 0.02)
        blocks = (EncoderBlock(config.width, config.heads, config.dropout) for _ in range(config.depth))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, classes))
        self.register_load_state_dict_pre_hook(_rename_parameters)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, 32, 32) to (N, classes) logits."""
        encoded = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.position_embedding)
        logits: Tensor = self.head(encoded.mean(dim=1))
        return logits


def _rename_parameters(_module: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Accept weights that version 0.1.0 saved under other parameter names."""
    for key in list(state):
        for old, new in RENAMED_PARAMETERS.items():
            if old in key:
                state[key.replace(old, new)] = state.pop(key)


class Cifar10Vit(Workload):
    """CIFAR-10 classification with a vision transformer."""

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
