"""A CNN for sentence classification (Kim 2014), for 20 Newsgroups, IMDB and AG News."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, Workload, datasets

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
POOLINGS: dict[str, type[nn.Module]] = {"max": nn.AdaptiveMaxPool1d, "avg": nn.AdaptiveAvgPool1d}


class TextCnn(nn.Module):
    """Embedding, one convolution over `kernel` words and pooling over the text."""

    def __init__(self, config: Config, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=0)
        self.features = nn.Sequential(
            nn.Conv1d(config.embedding, config.filters, config.kernel, padding="same"),
            ACTIVATIONS[config.activation](),
            POOLINGS[config.pooling](1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(config.filters, classes))

    def forward(self, words: Tensor) -> Tensor:
        """Map (N, length) token ids to (N, classes) logits."""
        logits: Tensor = self.head(self.features(self.embedding(words).transpose(1, 2)))
        return logits


class NewsgroupsCnn(Workload):
    """Classification of posts to 20 newsgroups with a CNN."""

    vocabulary, classes = 20_000, 20

    space = Space(
        model=dict(
            embedding=Choice(16, 32, 64, 128, default=64),
            filters=Choice(16, 32, 64, 128, default=64),
            kernel=Choice(3, 5, 7, 9, default=3),
            activation=Choice("relu", "tanh", "sigmoid", default="relu"),
            pooling=Choice("max", "avg", default="max"),
            dropout=Float(0.0, 0.5, default=0.2),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, 512, default=64),
            optimizer=Choice("adam", "rmsprop", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=3e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return TextCnn(config, self.vocabulary, self.classes)

    def data(self) -> Data:
        return datasets.newsgroups20(self.vocabulary)


class ImdbCnn(NewsgroupsCnn):
    """Sentiment of IMDB movie reviews with a CNN."""

    vocabulary, classes = 10_000, 2

    def data(self) -> Data:
        return datasets.imdb(self.vocabulary)


class AgNewsCnn(NewsgroupsCnn):
    """Topics of AG News articles with a CNN."""

    vocabulary, classes = 10_000, 4

    def data(self) -> Data:
        return datasets.ag_news(self.vocabulary)
