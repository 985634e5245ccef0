"""The study's models at full size, with the ranges of its table 2: for a GPU.

A study of one of them trains hundreds of models for up to 100 epochs: hours on a GPU, weeks on a CPU.
"""

from __future__ import annotations

from torch import Tensor, nn

from onefold import Choice, Config, Data, Float, Space, datasets
from onefold.workloads.impact_study.images import GLOBAL_POOLINGS, POOLINGS, ImageCnn
from onefold.workloads.impact_study.texts import SentenceCnn, SentimentLstm
from onefold.workloads.impact_study.workload import ACTIVATIONS, ImpactStudyWorkload, training_group

EPOCHS = 100
SMALL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
KERNELS = (3, 5, 7, 9)
BLOCKS = (3, 4, 6, 3)  # of the stages of ResNet-50
EXPANSION = 4


class FullImageCnn(ImageCnn):
    """MNIST classification as in the study: one convolution, pooling and a dense layer."""

    space = Space(
        architecture=dict(
            filters=Choice(6, 12, 24, 48, 96, 192, default=12),
            kernel=Choice(*KERNELS, default=3),
        ),
        layers=ImageCnn.space.groups["layers"],
        training=training_group(lr=1e-3, batch_size=128, epochs=4, max_epochs=EPOCHS, batch_sizes=SMALL_BATCHES),
    )


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with a shortcut; a stride above 1 downsamples."""

    def __init__(self, channels: int, width: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.activation = activation()

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, channels, H, W) to (N, 4 * width, H / stride, W / stride)."""
        result: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return result


class Resnet50(ImpactStudyWorkload):
    """CIFAR-10 classification with ResNet-50, whose stem keeps the resolution of the small images.

    The study does not say what its number of filters counts. Here it is the width of the last stage, and each stage
    has half the width of the next: 512 is the usual ResNet-50.
    """

    space = Space(
        architecture=dict(
            filters=Choice(16, 32, 64, 128, 256, 512, 1024, default=128),
            kernel=Choice(*KERNELS, default=7),
        ),
        layers=dict(
            dropout=Float(0.0, 0.9, default=0.5),
            activation=Choice(*ACTIVATIONS, default="relu"),
            pooling=Choice(*POOLINGS, *GLOBAL_POOLINGS, default="globalavg"),
        ),
        training=training_group(lr=1e-2, batch_size=32, epochs=25, max_epochs=EPOCHS),
    )

    def build(self, config: Config) -> nn.Module:
        activation = ACTIVATIONS[config.activation]
        widths = [config.filters // 2 ** (len(BLOCKS) - 1 - stage) for stage in range(len(BLOCKS))]
        channels = widths[0]
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, config.kernel, padding=config.kernel // 2, bias=False),
            nn.BatchNorm2d(channels),
            activation(),
        ]
        for stage, (width, blocks) in enumerate(zip(widths, BLOCKS)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, 2 if stage and not block else 1, activation))
                channels = EXPANSION * width
        if config.pooling in GLOBAL_POOLINGS:
            pooling, positions = GLOBAL_POOLINGS[config.pooling](1), 1
        else:
            pooling, positions = POOLINGS[config.pooling](2), 4  # of the final 4x4 feature map
        head = (pooling, nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(channels * positions, 10))
        return nn.Sequential(*layers, *head)

    def data(self) -> Data:
        return datasets.cifar10()


class FullSentenceCnn(SentenceCnn):
    """Sentiment of IMDB movie reviews with a CNN, as in the study."""

    space = Space(
        architecture=dict(
            filters=Choice(8, 16, 32, 64, 128, 256, default=128),
            kernel=Choice(*KERNELS, default=7),
            embedding=Choice(8, 16, 32, 64, 128, 256, default=128),
        ),
        layers=SentenceCnn.space.groups["layers"],
        training=training_group(lr=1e-3, batch_size=32, epochs=3, max_epochs=EPOCHS),
    )


class FullSentimentLstm(SentimentLstm):
    """Sentiment of IMDB movie reviews with a bidirectional LSTM, as in the study.

    The activation is that of the dense layer (study: of the LSTM), since torch's LSTM only has tanh.
    """

    space = Space(
        architecture=dict(
            units=Choice(16, 32, 64, 128, 256, default=64),
            embedding=Choice(16, 32, 64, 128, 256, default=128),
        ),
        layers=SentimentLstm.space.groups["layers"],
        training=training_group(lr=1e-3, batch_size=32, epochs=2, max_epochs=EPOCHS),
    )
