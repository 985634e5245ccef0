"""MobileNetV2 (Sandler et al. 2018) for images of 32x32 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, Workload, datasets

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 2, 2),
    (6, 64, 2, 2),
    (6, 96, 1, 1),
)  # expansion, filters, blocks, stride


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise 3x3 convolution and 1x1 projection, with a shortcut if the shapes allow it.

    Without `has_expansion` the block begins with the depthwise convolution, as the first one of the paper does.
    """

    def __init__(self, channels: int, filters: int, stride: int, expansion: int, *, has_expansion: bool = True) -> None:
        super().__init__()
        inner = channels * expansion
        layers = [nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]
        self.body = nn.Sequential(
            *layers * has_expansion,
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.has_shortcut = stride == 1 and channels == filters

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, channels, H, W) to (N, filters, H / stride, W / stride)."""
        result: Tensor = images + self.body(images) if self.has_shortcut else self.body(images)
        return result


class Cifar10Mobilenet(Workload):
    """CIFAR-10 classification with MobileNetV2."""

    space = Space(
        model=dict(width=Choice(0.5, 0.75, 1.0, default=0.5), dropout=Float(0.0, 0.5, default=0.1)),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, default=64),
            optimizer=Choice("sgd", "adam", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=2e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
            weight_decay=Float(1e-6, 1e-2, log=True, default=1e-5),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        channels = round(32 * config.width)
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(),
        ]
        for expansion, filters, blocks, stride in STAGES:
            for block in range(blocks):
                wide = round(filters * config.width)
                layers.append(InvertedResidual(channels, wide, stride if block == 0 else 1, expansion))
                channels = wide
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(channels, 10)]
        return nn.Sequential(*layers, *head)

    def data(self) -> Data:
        return datasets.cifar10()
