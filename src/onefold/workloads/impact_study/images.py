"""Image models: a small CNN on MNIST and a residual network on CIFAR-10."""

from __future__ import annotations

from torch import nn

from onefold import Choice, Config, Data, Float, Rejected, Space, datasets
from onefold.workloads.impact_study.workload import ACTIVATIONS, ImpactStudyWorkload, training_group
from onefold.workloads.resnet import ResidualBlock

SIDE = 28
POOLINGS: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
GLOBAL_POOLINGS: dict[str, type[nn.Module]] = {"globalmax": nn.AdaptiveMaxPool2d, "globalavg": nn.AdaptiveAvgPool2d}


class ImageCnn(ImpactStudyWorkload):
    """MNIST classification with one convolution, pooling and a dense layer.

    Reduced from the study: up to 48 filters (study: 192), batch sizes from 16 (1), up to 10 epochs (100). All defaults
    are those of the study.
    """

    space = Space(
        architecture=dict(
            filters=Choice(6, 12, 24, 48, default=12),
            kernel=Choice(3, 5, 7, 9, default=3),
        ),
        layers=dict(
            dropout=Float(0.0, 0.9, default=0.5),
            activation=Choice(*ACTIVATIONS, default="relu"),
            pooling=Choice(*POOLINGS, default="max"),
        ),
        training=training_group(lr=1e-3, batch_size=128, epochs=4),
    )

    def build(self, config: Config) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, config.filters, config.kernel),
            ACTIVATIONS[config.activation](),
            POOLINGS[config.pooling](2),
            nn.Flatten(),
            nn.Dropout(config.dropout),
            nn.Linear(config.filters * feature_side(config.kernel) ** 2, 10),
        )

    def data(self) -> Data:
        return datasets.mnist()

    def check(self, config: Config) -> None:
        if feature_side(config.kernel) < 1:
            raise Rejected(f"kernel {config.kernel} leaves no pixels of a {SIDE}x{SIDE} image to pool")


def feature_side(kernel: int) -> int:
    """Return the side of the feature map after convolution and pooling."""
    return (SIDE - kernel + 1) // 2


class SmallResnet(ImpactStudyWorkload):
    """CIFAR-10 classification: a stem convolution of size `kernel`, then three residual blocks.

    Reduced from the study: 8 layers (study: the 50 of ResNet-50), whose three stages have `filters`, twice and four
    times as many; 2 to 32 filters with default 16 (16 to 1024, default 128); up to 10 epochs with default 8 (100,
    default 25). The other defaults are those of the study.
    """

    space = Space(
        architecture=dict(
            filters=Choice(2, 4, 8, 16, 32, default=16),
            kernel=Choice(3, 5, 7, 9, default=7),
        ),
        layers=dict(
            dropout=Float(0.0, 0.9, default=0.5),
            activation=Choice(*ACTIVATIONS, default="relu"),
            pooling=Choice(*POOLINGS, *GLOBAL_POOLINGS, default="globalavg"),
        ),
        training=training_group(lr=1e-2, batch_size=32, epochs=8),
    )

    def build(self, config: Config) -> nn.Module:
        activation, filters = ACTIVATIONS[config.activation], config.filters
        if config.pooling in GLOBAL_POOLINGS:
            pooling, positions = GLOBAL_POOLINGS[config.pooling](1), 1
        else:
            pooling, positions = POOLINGS[config.pooling](2), 4  # of the final 4x4 feature map
        return nn.Sequential(
            nn.Conv2d(3, filters, config.kernel, stride=2, padding=config.kernel // 2, bias=False),
            nn.BatchNorm2d(filters),
            activation(),
            ResidualBlock(filters, filters, 1, activation),
            ResidualBlock(filters, 2 * filters, 2, activation),
            ResidualBlock(2 * filters, 4 * filters, 2, activation),
            pooling,
            nn.Flatten(),
            nn.Dropout(config.dropout),
            nn.Linear(4 * filters * positions, 10),
        )

    def data(self) -> Data:
        return datasets.cifar10()
