"""An LSTM with a stride over the text, as tuned by EdgeTune, for 20 Newsgroups, IMDB and AG News."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets


class StridedLstm(nn.Module):
    """An LSTM over the mean embeddings of `stride` words, max-pooled over time.

    A longer stride takes proportionally fewer steps, at the cost of detail.
    """

    def __init__(self, config: Config, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.stride: int = config.stride
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=0)
        self.window = nn.AvgPool1d(self.stride)
        self.lstm = nn.LSTM(config.embedding, config.units, batch_first=True, bidirectional=config.bidirectional)
        features = config.units * (2 if config.bidirectional else 1)
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(features, classes))

    def forward(self, words: Tensor) -> Tensor:
        """Map (N, length) token ids to (N, classes) logits."""
        padded = functional.pad(words, (0, -words.shape[1] % self.stride))
        steps = self.window(self.embedding(padded).transpose(1, 2)).transpose(1, 2)
        states, _ = self.lstm(steps)
        logits: Tensor = self.head(states.amax(dim=1))
        return logits


class NewsgroupsLstm(Workload):
    """Classification of posts to 20 newsgroups with an LSTM."""

    vocabulary, classes = 20_000, 20

    space = Space(
        model=dict(
            stride=Int(1, 32, log=True, default=4),
            embedding=Choice(16, 32, 64, 128, default=64),
            units=Choice(16, 32, 64, 128, default=64),
            bidirectional=Choice(False, True, default=False),
            dropout=Float(0.0, 0.5, default=0.2),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, 512, default=64),
            optimizer=Choice("adam", "rmsprop", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=5e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return StridedLstm(config, self.vocabulary, self.classes)

    def data(self) -> Data:
        return datasets.newsgroups20(self.vocabulary)


class ImdbLstm(NewsgroupsLstm):
    """Sentiment of IMDB movie reviews with an LSTM."""

    vocabulary, classes = 10_000, 2

    def data(self) -> Data:
        return datasets.imdb(self.vocabulary)


class AgNewsLstm(NewsgroupsLstm):
    """Topics of AG News articles with an LSTM."""

    vocabulary, classes = 10_000, 4

    def data(self) -> Data:
        return datasets.ag_news(self.vocabulary)
