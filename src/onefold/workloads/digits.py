"""A small CNN for scikit-learn's digits of 8x8 pixels: a whole study takes a minute."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Int, Rejected, Space, Workload, datasets

SIDE = 8
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class SmallCnn(nn.Module):
    """`depth` stages of convolution and pooling that double the filters, then one hidden layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        activation = ACTIVATIONS[config.activation]
        layers: list[nn.Module] = []
        channels = 1
        for level in range(config.depth):
            filters = config.filters * 2**level
            layers += [nn.Conv2d(channels, filters, config.kernel, padding="same"), nn.MaxPool2d(2), activation()]
            channels = filters
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(channels * (SIDE // 2**config.depth) ** 2, config.hidden),
            activation(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 1, 8, 8) to (N, 10) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


class Digits(Workload):
    """Classification of scikit-learn's digits, which need no download."""

    space = Space(
        model=dict(
            depth=Int(1, 3, default=2),
            filters=Choice(4, 8, 16, 32, default=8),
            kernel=Choice(3, 5, default=3),
            hidden=Choice(16, 32, 64, 128, default=32),
            activation=Choice("relu", "tanh", "gelu", default="relu"),
            dropout=Float(0.0, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(16, 32, 64, 128, default=32),
            optimizer=Choice("adam", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=3e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
            weight_decay=Float(1e-6, 1e-2, log=True, default=1e-5),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return SmallCnn(config)

    def data(self) -> Data:
        return datasets.digits()

    def check(self, config: Config) -> None:
        side = SIDE // 2 ** (config.depth - 1)
        if config.kernel // 2 >= side:
            raise Rejected(
                f"kernel {config.kernel} is too large for the {side}x{side} feature map at depth {config.depth}"
            )
