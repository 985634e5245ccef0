"""Compression of attention networks, embedding tables and recurrent layers, as they are exported and served."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onefold.compression.channel_pruning import ChannelPruner
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.onnx_weights import full_precision_layers
from onefold.compression.registry import method_named
from onefold.serving.export import difference, export

WIDTH, HEADS, TOKENS, CLASSES = 32, 4, 16, 5
WORDS = torch.randint(1, 100, (64, TOKENS), generator=torch.Generator().manual_seed(0))
WORDS[::3, 10:] = 0  # padding
INPUTS = torch.randn(64, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(inputs, inputs, inputs)[0].mean(dim=1))


class Encoder(nn.Module):
    """`nn.TransformerEncoder`, whose layers start as copies of each other, with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(words), src_key_padding_mask=words == 0)[:, 0])


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense, self.attention_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        def split(values: torch.Tensor) -> torch.Tensor:
            return values.view(values.size(0), values.size(1), HEADS, -1).transpose(1, 2)

        query, key, value = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1)) + mask
        context = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        hidden = self.attention_norm(self.dense(context) + hidden)
        return self.norm(self.output(nn.functional.gelu(self.intermediate(hidden))) + hidden)


class Bert(nn.Module):
    """An encoder as libraries of transformers build them: ids and a mask in, a mapping out."""

    def __init__(self, *, with_hidden: bool = True) -> None:
        super().__init__()
        self.with_hidden = with_hidden
        self.words, self.positions = nn.Embedding(100, WIDTH, padding_idx=0), nn.Embedding(TOKENS, WIDTH)
        self.norm, self.layers = nn.LayerNorm(WIDTH), nn.ModuleList(BertLayer() for _ in range(2))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        hidden = self.norm(self.words(input_ids) + self.positions(torch.arange(input_ids.size(1))))
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits = self.classifier(torch.tanh(self.pooler(hidden[:, 0])))
        return {"last_hidden_state": hidden, "logits": logits} if self.with_hidden else {"logits": logits}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(100, WIDTH), kind(WIDTH, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.words(words))[0].amax(dim=1))


NETWORKS: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "attention": (Attention, [INPUTS]),
    "encoder": (Encoder, [WORDS]),
    "bert": (Bert, [WORDS, (WORDS != 0).long()]),
    "lstm": (lambda: Recurrent(nn.LSTM), [WORDS]),
    "gru": (lambda: Recurrent(nn.GRU), [WORDS]),
    "rnn": (lambda: Recurrent(nn.RNN), [WORDS]),
}


def build(name: str) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    network, inputs = NETWORKS[name]
    return network().eval(), inputs


def outputs(model: Path, inputs: list[torch.Tensor]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {f"input{index}": part.numpy() for index, part in enumerate(inputs)})[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_int8_covers_every_layer_and_keeps_the_predictions(name: str, tmp_path: Path) -> None:
    network, inputs = build(name)
    exact = export(network, inputs, tmp_path / "exact.onnx")
    assert difference(network, exact) < 1e-5
    strip_metadata(exact)
    wanted = outputs(exact, inputs)
    samples = {f"input{index}": part.numpy() for index, part in enumerate(inputs)}
    for precision, error in (("int8", 0.3), ("int8-dynamic", 0.05)):
        path = tmp_path / f"{precision}.onnx"
        assert method_named(precision).compressor.compress_onnx(exact, path, samples) == ()
        assert full_precision_layers(path) == ()
        strip_metadata(path)
        assert path.stat().st_size < exact.stat().st_size / 1.9
        got = outputs(path, inputs)
        assert np.abs(got - wanted).max() < error * np.abs(wanted).max()
        assert (got.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.95


def test_an_embedding_that_is_also_the_output_layer_is_quantized_once_for_each(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.head.weight = self.words.weight

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(words).mean(dim=1))

    words = torch.randint(0, WIDTH, (64, TOKENS), generator=torch.Generator().manual_seed(0))
    exact = export(Tied(), [words], tmp_path / "exact.onnx")
    wanted = outputs(exact, [words])
    for precision in ("int8", "int8-dynamic"):
        path = tmp_path / f"{precision}.onnx"
        method_named(precision).compressor.compress_onnx(exact, path, {"input0": words.numpy()})
        assert np.abs(outputs(path, [words]) - wanted).max() < 0.2 * np.abs(wanted).max()


def test_a_graph_without_operator_names_can_be_quantized(tmp_path: Path) -> None:
    network, inputs = build("bert")
    exact = export(network, inputs, tmp_path / "exact.onnx")
    strip_metadata(exact)
    assert not any(node.name for node in onnx.load(str(exact)).graph.node)
    path = tmp_path / "int8.onnx"
    samples = {f"input{index}": part.numpy() for index, part in enumerate(inputs)}
    method_named("int8").compressor.compress_onnx(exact, path, samples)
    wanted = outputs(exact, inputs)
    assert np.abs(outputs(path, inputs) - wanted).max() < 0.3 * np.abs(wanted).max()


def test_stored_int8_weights_are_dequantized_when_the_model_is_loaded(tmp_path: Path) -> None:
    network, inputs = build("gru")
    exact = export(network, inputs, tmp_path / "exact.onnx")
    path, optimized = tmp_path / "int8.onnx", tmp_path / "optimized.onnx"
    method_named("int8-dynamic").compressor.compress_onnx(exact, path, None)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    gru = next(node for node in onnx.load(str(optimized)).graph.node if node.op_type == "GRU")
    computed = {output for node in onnx.load(str(optimized)).graph.node for output in node.output}
    assert not computed & set(gru.input[1:3])


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_the_dimensions_of_embeddings_and_attention_are_pruned(share: float) -> None:
    network, inputs = build("encoder")
    ChannelPruner(network, [part[:2] for part in inputs], share).prune()
    kept = {0.5: 16, 0.3: 20}[share]  # as many dimensions in each head
    assert network.words.weight.shape == (100, kept)
    assert network.layers.layers[1].self_attn.embed_dim == kept
    assert network(*inputs).shape == (64, CLASSES)


def test_a_network_that_returns_a_mapping_keeps_the_shape_of_each_output() -> None:
    torch.manual_seed(0)
    inputs = [part[:2] for part in NETWORKS["bert"][1]]
    whole, narrow = Bert(), Bert(with_hidden=False)
    for network in (whole, narrow):
        ChannelPruner(network, inputs, 0.5).prune()
    assert {name: part.shape[-1] for name, part in whole(*inputs).items()} == {
        "last_hidden_state": WIDTH,
        "logits": CLASSES,
    }
    assert whole.layers[0].intermediate.out_features == WIDTH
    assert narrow.words.weight.shape == (100, WIDTH // 2)
    assert narrow(*inputs)["logits"].shape == (2, CLASSES)
