"""M5 (Dai et al. 2017): a 1-D CNN on raw waveforms, for Speech Commands."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, Workload, datasets


class M5(nn.Module):
    """A long first kernel that acts as a filter bank, then three short ones, each with pooling."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        n = config.dimension
        layers: list[nn.Module] = []
        for channels, filters, kernel, stride in ((1, n, 80, 16), (n, n, 3, 1), (n, 2 * n, 3, 1), (2 * n, 2 * n, 3, 1)):
            convolution = nn.Conv1d(channels, filters, kernel, stride, bias=False)
            layers += [convolution, nn.BatchNorm1d(filters), nn.ReLU(), nn.MaxPool1d(config.pool)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(2 * n, 12))

    def forward(self, audio: Tensor) -> Tensor:
        """Map (N, 1, 8000) to (N, 12) logits."""
        logits: Tensor = self.head(self.features(audio))
        return logits


class SpeechM5(Workload):
    """Keyword spotting in one second of speech: ten words, an unknown word, or silence."""

    space = Space(
        model=dict(
            dimension=Choice(32, 64, 128, default=32),
            pool=Choice(2, 3, 4, default=4),
            dropout=Float(0.0, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, 512, default=32),
            optimizer=Choice("adam", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=3e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
            weight_decay=Float(1e-6, 1e-2, log=True, default=1e-4),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return M5(config)

    def data(self) -> Data:
        return datasets.speech_commands()
