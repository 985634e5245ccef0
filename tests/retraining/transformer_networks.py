"""Transformers in the layouts of torch's encoder, of timm's image transformers and of Hugging Face's BERT."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS, PADDING = 5, 20, 0


class EncoderNet(nn.Module):
    """`nn.TransformerEncoder` over tokens, with a padding mask and a causal mask that are made in the forward."""

    def __init__(
        self,
        width: int = 16,
        depth: int = 2,
        *,
        is_masked: bool = True,
        is_causal: bool = False,
        is_nested: bool = False,  # in evaluation mode, with a warning of torch's
    ) -> None:
        super().__init__()
        self.is_masked, self.is_causal = is_masked, is_causal
        self.embedding, self.positions = nn.Embedding(WORDS, width), nn.Parameter(0.1 * torch.randn(1, 6, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=is_nested)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        padding = (words == PADDING) if self.is_masked else None
        mask = None
        if self.is_causal:
            length = words.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        x = self.encoder(self.embedding(words) + self.positions, mask=mask, src_key_padding_mask=padding)
        if padding is None:
            return self.head(x.mean(1))
        kept = (~padding).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1))


class PatchEmbedding(nn.Module):
    """Patches of an image of a fixed size."""

    def __init__(self, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.img_size = (size, size)
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        _, _, height, width = x.shape
        assert height == self.img_size[0], f"expected images of {self.img_size[0]} rows, got {height}"
        assert width == self.img_size[1], f"expected images of {self.img_size[1]} columns, got {width}"
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = heads, width // heads, (width // heads) ** -0.5
        self.fused_attn = True
        self.qkv, self.attn_drop, self.proj = nn.Linear(width, 3 * width), nn.Dropout(dropout), nn.Linear(width, width)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            x = functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout)
        else:
            x = self.attn_drop((query * self.scale @ key.transpose(-2, -1)).softmax(-1)) @ value
        return self.proj(x.transpose(1, 2).reshape(batch, length, width))


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, width: int, *, inplace: bool = False) -> None:
        super().__init__()
        self.inplace, self.gamma = inplace, nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.gamma) if self.inplace else x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * kept.div_(1 - self.rate)


class Block(nn.Module):
    """A pre-norm block with layer scale and stochastic depth."""

    def __init__(self, width: int, heads: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(width), Attention(width, heads, dropout), LayerScale(width)
        self.drop_path1, self.drop_path2 = DropPath(drop_path), DropPath(drop_path)
        self.norm2, self.ls2 = nn.LayerNorm(width), LayerScale(width)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=nn.Linear(width, 2 * width), act=nn.GELU(), fc2=nn.Linear(2 * width, width))
        )

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), attn_mask=attn_mask)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class VisionTransformer(nn.Module):
    """An image transformer as timm builds it."""

    def __init__(self, width: int = 16, depth: int = 2, dropout: float = 0.1, drop_path: float = 0.1) -> None:
        super().__init__()
        self.grad_checkpointing, self.global_pool = False, "token"
        self.patch_embed = PatchEmbedding(8, 4, width)
        self.cls_token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.1 * torch.randn(1, 5, width))
        self.blocks = nn.Sequential(*(Block(width, 2, dropout, drop_path) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def _pos_embed(self, x: Tensor) -> Tensor:
        tokens = [self.cls_token.expand(x.shape[0], -1, -1)] if self.cls_token is not None else []
        return torch.cat([*tokens, x], dim=1) + self.pos_embed

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = self._pos_embed(self.patch_embed(x))
        if attn_mask is not None:
            for block in self.blocks:
                x = block(x, attn_mask=attn_mask)
        else:
            x = self.blocks(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x[:, 0] if self.global_pool == "token" else x.mean(1)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return self.forward_head(self.forward_features(x, attn_mask=attn_mask))


class ModelOutput(OrderedDict[str, Any]):
    """A dictionary of the fields of a dataclass that are not None."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type] # subclasses are dataclasses
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


@dataclass
class EncoderOutput(ModelOutput):
    """What the encoder returns."""

    last_hidden_state: Any = None
    hidden_states: Any = None


@dataclass
class ClassifierOutput(ModelOutput):
    """What the classifier returns."""

    loss: Any = None
    logits: Any = None
    hidden_states: Any = None


class BertEmbeddings(nn.Module):
    """Word, position and type embeddings, with buffers of ids."""

    position_ids: Tensor
    token_type_ids: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, width, padding_idx=PADDING)
        self.position_embeddings, self.token_type_embeddings = nn.Embedding(12, width), nn.Embedding(2, width)
        self.LayerNorm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.register_buffer("position_ids", torch.arange(12).expand((1, -1)), persistent=False)
        self.register_buffer("token_type_ids", torch.zeros((1, 12), dtype=torch.long), persistent=False)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        batch_size, seq_length = input_ids.size()
        if token_type_ids is None:
            token_type_ids = self.token_type_ids[:, :seq_length].expand(batch_size, seq_length)
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x + self.position_embeddings(self.position_ids[:, :seq_length])))


class BertSelfAttention(nn.Module):
    """Attention with an additive mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:-1], -1, self.head_size)
        query, key, value = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / self.head_size**0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = self.dropout(scores.softmax(-1))
        return (weights @ value).permute(0, 2, 1, 3).reshape(*x.shape[:-1], -1).contiguous(), weights


class BertLayer(nn.Module):
    """A post-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.output = BertSelfAttention(width, heads), nn.Linear(width, width)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.intermediate, self.down, self.dropout = nn.Linear(width, 32), nn.Linear(32, width), nn.Dropout(0.1)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(x, attention_mask)
        x = self.attention_norm(self.dropout(self.output(mixed)) + x)
        return self.norm(self.dropout(self.down(functional.gelu(self.intermediate(x)))) + x), weights


class BertEncoder(nn.Module):
    """A stack of layers, whose intermediate outputs may be collected."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, output_hidden_states: bool | None = False
    ) -> EncoderOutput:
        states: tuple[Tensor, ...] | None = () if output_hidden_states else None
        for layer in self.layer:
            if states is not None:
                states = (*states, x)
            x = layer(x, attention_mask)[0]
        return EncoderOutput(last_hidden_state=x, hidden_states=states)


class BertClassifier(nn.Module):
    """A classifier in the layout of BERT, which returns a record of outputs."""

    def __init__(self, width: int = 16, heads: int = 2, depth: int = 2, *, output_hidden_states: bool = False) -> None:
        super().__init__()
        self.output_hidden_states = output_hidden_states
        self.embeddings, self.encoder = BertEmbeddings(width), BertEncoder(width, heads, depth)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ClassifierOutput:
        x = self.embeddings(input_ids)
        if attention_mask is None:
            attention_mask = torch.ones(input_ids.size(), device=input_ids.device)
        mask = attention_mask[:, None, None, :].to(dtype=x.dtype)
        mask = (1.0 - mask) * torch.finfo(x.dtype).min
        encoded = self.encoder(x, mask, output_hidden_states=self.output_hidden_states)
        logits = self.classifier(self.pooler(encoded[next(iter(encoded))][:, 0]).tanh())
        loss = functional.cross_entropy(logits, labels) if labels is not None else None
        return ClassifierOutput(loss=loss, logits=logits, hidden_states=encoded.hidden_states)


class Logits(nn.Module):
    """A network that returns the logits of another one."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.network = build()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.network(x).logits
        return result
