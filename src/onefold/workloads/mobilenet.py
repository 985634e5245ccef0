"""MobileNetV2 (Sandler et al. 2018) for pictures of 32x32: thin layers between wide ones, each wide one done channel by
channel."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, Workload, datasets

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 2, 2),
    (6, 64, 2, 2),
    (6, 96, 1, 1),
)  # widening, filters, blocks, stride


class Bottleneck(nn.Module):
    """Widens, filters each channel by itself, and narrows again; with a way around where the shapes allow it."""

    def __init__(self, channels: int, filters: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = channels * widening
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.has_way_around = stride == 1 and channels == filters

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, filters, H / stride, W / stride)."""
        result: Tensor = images + self.body(images) if self.has_way_around else self.body(images)
        return result


class Cifar10Mobilenet(Workload):
    """Colour photographs of ten kinds of things, by a network made for phones."""

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
        for widening, filters, blocks, stride in STAGES:
            for block in range(blocks):
                wide = round(filters * config.width)
                layers.append(Bottleneck(channels, wide, stride if block == 0 else 1, widening))
                channels = wide
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(channels, 10)]
        return nn.Sequential(*layers, *head)

    def data(self) -> Data:
        return datasets.cifar10()
