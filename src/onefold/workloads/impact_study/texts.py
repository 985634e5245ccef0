"""Text models: a CNN and an LSTM for the sentiment of IMDB movie reviews.

The study has one sigmoid output with binary cross-entropy. Two logits with cross-entropy are equivalent; the other two
losses then cover both classes instead of the positive one alone.
"""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, datasets
from onefold.workloads.impact_study.workload import ACTIVATIONS, ImpactStudyWorkload, training_group

VOCABULARY = 10_000
POOLINGS: dict[str, type[nn.Module]] = {"globalmax": nn.AdaptiveMaxPool1d, "globalavg": nn.AdaptiveAvgPool1d}
STRIDE = 3


class StridedCnn(nn.Module):
    """Embedding, two strided convolutions, pooling over the text and two dense layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        activation, filters = ACTIVATIONS[config.activation], config.filters
        self.embedding = nn.Embedding(VOCABULARY, config.embedding, padding_idx=0)
        self.features = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Conv1d(config.embedding, filters, config.kernel, STRIDE),
            activation(),
            nn.Conv1d(filters, filters, config.kernel, STRIDE),
            activation(),
            POOLINGS[config.pooling](1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(filters, filters), activation(), nn.Dropout(config.dropout), nn.Linear(filters, 2)
        )

    def forward(self, words: Tensor) -> Tensor:
        """Map (N, length) token ids to (N, 2) logits."""
        logits: Tensor = self.head(self.features(self.embedding(words).transpose(1, 2)))
        return logits


class SentenceCnn(ImpactStudyWorkload):
    """Sentiment of IMDB movie reviews with a CNN.

    Reduced from the study: up to 128 filters and embedding dimensions (study: 256), up to 10 epochs (100). All defaults
    are those of the study.
    """

    vocabulary = VOCABULARY

    space = Space(
        architecture=dict(
            filters=Choice(8, 16, 32, 64, 128, default=128),
            kernel=Choice(3, 5, 7, 9, default=7),
            embedding=Choice(8, 16, 32, 64, 128, default=128),
        ),
        layers=dict(
            dropout=Float(0.0, 0.9, default=0.5),
            activation=Choice(*ACTIVATIONS, default="relu"),
            pooling=Choice(*POOLINGS, default="globalmax"),
        ),
        training=training_group(lr=1e-3, batch_size=32, epochs=3),
    )

    def build(self, config: Config) -> nn.Module:
        return StridedCnn(config)

    def data(self) -> Data:
        return datasets.imdb(VOCABULARY)


class BidirectionalLstm(nn.Module):
    """Embedding, a bidirectional LSTM max-pooled over time and two dense layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.embedding, padding_idx=0)
        self.lstm = nn.LSTM(config.embedding, config.units, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(
            nn.Linear(2 * config.units, config.units),
            ACTIVATIONS[config.activation](),
            nn.Dropout(config.dropout),
            nn.Linear(config.units, 2),
        )

    def forward(self, words: Tensor) -> Tensor:
        """Map (N, length) token ids to (N, 2) logits."""
        states, _ = self.lstm(self.embedding(words))
        logits: Tensor = self.head(states.amax(dim=1))
        return logits


class SentimentLstm(ImpactStudyWorkload):
    """Sentiment of IMDB movie reviews with an LSTM.

    Reduced from the study: up to 128 units and embedding dimensions (study: 256), up to 10 epochs (100). All defaults
    are those of the study. The activation is that of the dense layer (study: of the LSTM), since torch's LSTM only has
    tanh.
    """

    vocabulary = VOCABULARY

    space = Space(
        architecture=dict(
            units=Choice(16, 32, 64, 128, default=64),
            embedding=Choice(16, 32, 64, 128, default=128),
        ),
        layers=dict(
            dropout=Float(0.0, 0.9, default=0.5),
            activation=Choice(*ACTIVATIONS, default="tanh"),
        ),
        training=training_group(lr=1e-3, batch_size=32, epochs=2),
    )

    def build(self, config: Config) -> nn.Module:
        return BidirectionalLstm(config)

    def data(self) -> Data:
        return datasets.imdb(VOCABULARY)
