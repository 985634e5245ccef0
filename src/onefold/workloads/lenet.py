"""LeNet-5 (LeCun et al. 1998) with tunable sizes, for MNIST and Fashion-MNIST."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Rejected, Space, Workload, datasets

SIDE = 28
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
POOLINGS: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}


def feature_side(kernel: int) -> int:
    """Return the side of the feature map after two stages of convolution and pooling."""
    return ((SIDE - kernel + 1) // 2 - kernel + 1) // 2


class Lenet(nn.Module):
    """Two stages of convolution and pooling, then two dense layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        activation, pooling = ACTIVATIONS[config.activation], POOLINGS[config.pooling]
        # Pooling precedes the activation: a quarter of the work, and the same result for max pooling.
        self.features = nn.Sequential(
            nn.Conv2d(1, config.filters, config.kernel),
            pooling(2),
            activation(),
            nn.Conv2d(config.filters, 2 * config.filters, config.kernel),
            pooling(2),
            activation(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(2 * config.filters * feature_side(config.kernel) ** 2, config.hidden),
            activation(),
            nn.Linear(config.hidden, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 1, 28, 28) to (N, 10) logits."""
        logits: Tensor = self.head(self.features(images))
        return logits


class MnistLenet(Workload):
    """MNIST classification with LeNet."""

    space = Space(
        model=dict(
            filters=Choice(4, 8, 12, 16, 24, default=8),
            kernel=Choice(3, 5, 7, 9, default=5),
            hidden=Choice(32, 64, 128, 256, default=64),
            activation=Choice("relu", "tanh", "sigmoid", default="relu"),
            pooling=Choice("max", "avg", default="max"),
            dropout=Float(0.0, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, 512, 1024, default=128),
            optimizer=Choice("adam", "sgd", "rmsprop", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return Lenet(config)

    def data(self) -> Data:
        return datasets.mnist()

    def check(self, config: Config) -> None:
        if feature_side(config.kernel) < 1:
            raise Rejected(f"two convolutions with kernel {config.kernel} leave no pixels of a {SIDE}x{SIDE} image")


class FashionLenet(MnistLenet):
    """Fashion-MNIST classification with LeNet."""

    def data(self) -> Data:
        return datasets.fashion_mnist()
