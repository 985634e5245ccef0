"""A recurrent network with a stride over the text, as EdgeTune tunes it, on 20 Newsgroups, IMDB and AG News."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Space, Workload, datasets


class StridedLstm(nn.Module):
    """An LSTM that takes `stride` words at each step, as the mean of their vectors, and remembers its highest states.

    A longer stride reads a text in fewer steps: faster in proportion, and blurred.
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
        """(N, length) word numbers to (N, classes) logits."""
        whole = functional.pad(words, (0, -words.shape[1] % self.stride))
        steps = self.window(self.embedding(whole).transpose(1, 2)).transpose(1, 2)
        states, _ = self.lstm(steps)
        logits: Tensor = self.head(states.amax(dim=1))
        return logits


class NewsgroupsLstm(Workload):
    """Posts to twenty newsgroups: which one?"""

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
    """Film reviews: bad or good?"""

    vocabulary, classes = 10_000, 2

    def data(self) -> Data:
        return datasets.imdb(self.vocabulary)


class AgNewsLstm(NewsgroupsLstm):
    """News in brief: world, sports, business or science?"""

    vocabulary, classes = 10_000, 4

    def data(self) -> Data:
        return datasets.ag_news(self.vocabulary)
