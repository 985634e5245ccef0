"""Pictures: a small CNN on MNIST, and a residual network on CIFAR-10."""

from __future__ import annotations

from torch import nn

from onefold import Choice, Config, Data, Float, Int, Rejected, Space, datasets
from onefold.workloads.impact_study.workload import ACTIVATIONS, LOSSES, OPTIMIZERS, ImpactStudyWorkload
from onefold.workloads.resnet import ResidualBlock

SIDE = 28
POOLINGS: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
GLOBAL_POOLINGS: dict[str, type[nn.Module]] = {"globalmax": nn.AdaptiveMaxPool2d, "globalavg": nn.AdaptiveAvgPool2d}


class ImageCnn(ImpactStudyWorkload):
    """Handwritten digits: one convolution, a pooling and a dense layer.

    Scaled from the study: filters end at 48 (there 192), batches begin at 16 (there 1), epochs end at 10 (there 100).
    Every default is the study's.
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
        training=dict(
            loss=Choice(*LOSSES, default="crossentropy"),
            optimizer=Choice(*OPTIMIZERS, default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-3),
            batch_size=Choice(16, 32, 64, 128, 256, 512, default=128),
            epochs=Int(1, 10, default=4),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, config.filters, config.kernel),
            ACTIVATIONS[config.activation](),
            POOLINGS[config.pooling](2),
            nn.Flatten(),
            nn.Dropout(config.dropout),
            nn.Linear(config.filters * pixels_left(config.kernel) ** 2, 10),
        )

    def data(self) -> Data:
        return datasets.mnist()

    def check(self, config: Config) -> None:
        if pixels_left(config.kernel) < 1:
            raise Rejected(f"a kernel of {config.kernel} leaves nothing of a picture of {SIDE} pixels to pool")


def pixels_left(kernel: int) -> int:
    """The side of the picture after a convolution and a pooling."""
    return (SIDE - kernel + 1) // 2


class SmallResnet(ImpactStudyWorkload):
    """Colour photographs of ten kinds of things: a first convolution with `kernel`, then three stages of two layers.

    Scaled from the study: 8 layers (there the 50 of Resnet-50), whose three stages have `filters`, twice and four times
    as many; filters are an eighth of the study's and end at 32 (there 16 to 1024), so their default is 16 (there 128);
    epochs end at 10 with 8 as default (there 100 and 25). The other defaults are the study's.
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
        training=dict(
            loss=Choice(*LOSSES, default="crossentropy"),
            optimizer=Choice(*OPTIMIZERS, default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-2),
            batch_size=Choice(16, 32, 64, 128, 256, 512, default=32),
            epochs=Int(1, 10, default=8),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        activation, filters = ACTIVATIONS[config.activation], config.filters
        if config.pooling in GLOBAL_POOLINGS:
            pooling, places = GLOBAL_POOLINGS[config.pooling](1), 1
        else:
            pooling, places = POOLINGS[config.pooling](2), 4  # of the 4 × 4 that the stages leave
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
            nn.Linear(4 * filters * places, 10),
        )

    def data(self) -> Data:
        return datasets.cifar10()
