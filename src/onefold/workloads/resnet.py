"""ResNet for CIFAR-10 (He et al. 2016): 6n + 2 layers in three stages."""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, Workload, datasets


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; a stride above 1 downsamples."""

    def __init__(self, channels: int, filters: int, stride: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            activation(),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.shortcut = nn.Identity() if channels == filters else nn.Conv2d(channels, filters, 1, stride, bias=False)
        self.activation = activation()

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, channels, H, W) to (N, filters, H / stride, W / stride)."""
        result: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return result


class Cifar10Resnet(Workload):
    """CIFAR-10 classification with a ResNet."""

    space = Space(
        model=dict(
            depth=Choice(8, 14, 20, default=8),
            width=Choice(8, 16, 24, default=16),
            dropout=Float(0.0, 0.5, default=0.0),
        ),
        training=dict(
            batch_size=Choice(32, 64, 128, 256, 512, default=64),
            optimizer=Choice("sgd", "adam", default="sgd"),
            lr=Float(1e-4, 1e-1, log=True, default=3e-2),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
            weight_decay=Float(1e-6, 1e-2, log=True, default=1e-4),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        # The stem downsamples at once, which makes the remaining layers four times as fast.
        layers: list[nn.Module] = [
            nn.Conv2d(3, config.width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(config.width),
            nn.ReLU(),
        ]
        channels = config.width
        for stage in range(3):
            filters = config.width * 2**stage
            for block in range((config.depth - 2) // 6):
                layers.append(ResidualBlock(channels, filters, stride=2 if stage and not block else 1))
                channels = filters
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(channels, 10)]
        return nn.Sequential(*layers, *head)

    def data(self) -> Data:
        return datasets.cifar10()
