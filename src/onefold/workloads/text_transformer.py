"""A small transformer encoder (Vaswani et al. 2017) for AG News."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets


class TextTransformer(nn.Module):
    """Token and position embeddings, pre-norm encoder layers, the mean over the words and a linear head."""

    def __init__(self, config: Config, vocabulary: int, length: int, classes: int) -> None:
        super().__init__()
        width = config.width
        self.words, self.positions = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, config.heads, config.expansion * width, config.dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(config.depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Dropout(config.dropout), nn.Linear(width, classes))

    def forward(self, words: Tensor) -> Tensor:
        """Map (N, length) token ids to (N, classes) logits."""
        positions = torch.arange(words.shape[1], device=words.device)
        is_padding = (words == 0) & (positions > 0)  # the first token stays, so that no text is empty
        encoded = self.words(words) + self.positions(positions)
        for layer in self.layers:
            encoded = layer(encoded, src_key_padding_mask=is_padding)
        kept = (~is_padding).unsqueeze(-1).to(encoded.dtype)
        logits: Tensor = self.head((encoded * kept).sum(dim=1) / kept.sum(dim=1))
        return logits


class AgNewsTransformer(Workload):
    """Topics of AG News articles with a transformer encoder."""

    vocabulary, length, classes = 10_000, 64, 4

    space = Space(
        model=dict(
            width=Choice(32, 64, 128, default=64),
            depth=Int(1, 4, default=2),
            heads=Choice(2, 4, default=4),
            expansion=Choice(1, 2, 4, default=2),
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
        return TextTransformer(config, self.vocabulary, self.length, self.classes)

    def data(self) -> Data:
        return datasets.ag_news(self.vocabulary, self.length)
