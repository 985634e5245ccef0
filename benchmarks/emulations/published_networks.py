"""Eight networks for pictures of 224x224 pixels whose latencies on ARM boards are published, with random weights.

They are written from the papers' tables: SqueezeNet 1.1, MobileNet v1, v2 and v3 (large), ShuffleNet v2 (1.0x), MnasNet
(1.0), ResNet-18 and ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES = 1000


def conv(
    before: int, after: int, size: int = 1, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> nn.Sequential:
    """A convolution with batch normalization and an activation."""
    layers = [nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


def head(width: int) -> list[nn.Module]:
    """Global pooling and a classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


class Residual(nn.Module):
    """A body beside a shortcut, added."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.body(x) + self.shortcut(x))
        return result


class Concatenated(nn.Module):
    """Two branches whose channels are concatenated; `shuffle` mixes them, and `split` gives each half of the input."""

    def __init__(self, first: nn.Module, second: nn.Module, *, shuffle: bool = False, split: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.shuffle, self.split = first, second, shuffle, split

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1) if self.split else (x, x)
        joined = torch.cat([self.first(left), self.second(right)], 1)
        if not self.shuffle:
            return joined
        channels, height, width = joined.shape[1:]
        return joined.reshape(-1, 2, channels // 2, height, width).transpose(1, 2).reshape(-1, channels, height, width)


class Gated(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        squeezed = max(8, (width // 4 + 4) // 8 * 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, width, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * self.gate(x)
        return result


def inverted(
    before: int, wide: int, after: int, size: int, stride: int, act: type[nn.Module], *, gated: bool = False
) -> nn.Module:
    """An inverted residual block."""
    layers: list[nn.Module] = [conv(before, wide, act=act)] if wide != before else []
    layers += [conv(wide, wide, size, stride, wide, act=act), *([Gated(wide)] if gated else [])]
    body = nn.Sequential(*layers, conv(wide, after, act=None))
    return Residual(body) if stride == 1 and before == after else body


def squeezenet() -> nn.Module:
    def fire(before: int, squeeze: int, expand: int) -> nn.Module:
        first, second = (
            nn.Sequential(nn.Conv2d(squeeze, expand, size, padding=size // 2), nn.ReLU()) for size in (1, 3)
        )
        return nn.Sequential(nn.Conv2d(before, squeeze, 1), nn.ReLU(), Concatenated(first, second))

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [fire(64, 16, 64), fire(128, 16, 64), nn.MaxPool2d(3, 2), fire(128, 32, 128), fire(256, 32, 128)]
    layers += [nn.MaxPool2d(3, 2), fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)]
    return nn.Sequential(*layers, nn.Conv2d(512, CLASSES, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def mobilenet() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2)]
    before = 32
    for after, stride in (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ):
        layers += [conv(before, before, 3, stride, before), conv(before, after)]
        before = after
    return nn.Sequential(*layers, *head(1024))


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act=nn.ReLU6)]
    before = 32
    for expansion, after, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            layers.append(inverted(before, before * expansion, after, 3, first if index == 0 else 1, nn.ReLU6))
            before = after
    return nn.Sequential(*layers, conv(320, 1280, act=nn.ReLU6), *head(1280))


def mobilenet_v3() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
    before, relu, swish = 16, nn.ReLU, nn.Hardswish
    for size, wide, after, gated, act, stride in (
        (3, 16, 16, False, relu, 1), (3, 64, 24, False, relu, 2), (3, 72, 24, False, relu, 1),
        (5, 72, 40, True, relu, 2), (5, 120, 40, True, relu, 1), (5, 120, 40, True, relu, 1),
        (3, 240, 80, False, swish, 2), (3, 200, 80, False, swish, 1), (3, 184, 80, False, swish, 1),
        (3, 184, 80, False, swish, 1), (3, 480, 112, True, swish, 1), (3, 672, 112, True, swish, 1),
        (5, 672, 160, True, swish, 2), (5, 960, 160, True, swish, 1), (5, 960, 160, True, swish, 1),
    ):  # fmt: skip
        layers.append(inverted(before, wide, after, size, stride, act, gated=gated))
        before = after
    layers += [conv(160, 960, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280)]
    return nn.Sequential(*layers, nn.Hardswish(), nn.Linear(1280, CLASSES))


def shufflenet_v2() -> nn.Module:
    def unit(before: int, after: int, *, strided: bool) -> nn.Module:
        half, stride, start = after // 2, 1 + strided, before if strided else after // 2
        body = nn.Sequential(conv(start, half), conv(half, half, 3, stride, half, act=None), conv(half, half))
        if not strided:
            return Concatenated(nn.Identity(), body, shuffle=True, split=True)
        return Concatenated(
            nn.Sequential(conv(before, before, 3, 2, before, act=None), conv(before, half)), body, shuffle=True
        )

    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    before = 24
    for after, count in ((116, 4), (232, 8), (464, 4)):
        for index in range(count):
            layers.append(unit(before, after, strided=index == 0))
            before = after
    return nn.Sequential(*layers, conv(464, 1024), *head(1024))


def mnasnet() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2), conv(32, 32, 3, 1, 32), conv(32, 16, act=None)]
    before = 16
    for size, expansion, after, count, first in (
        (3, 3, 24, 3, 2), (5, 3, 40, 3, 2), (5, 6, 80, 3, 2), (3, 6, 96, 2, 1), (5, 6, 192, 4, 2), (3, 6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            layers.append(inverted(before, before * expansion, after, size, first if index == 0 else 1, nn.ReLU))
            before = after
    return nn.Sequential(*layers, conv(320, 1280), *head(1280))


def resnet(counts: tuple[int, ...], *, bottleneck: bool) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        after = 4 * width if bottleneck else width
        for index in range(count):
            stride = 2 if index == 0 and stage > 0 else 1
            if bottleneck:
                body = nn.Sequential(conv(before, width), conv(width, width, 3, stride), conv(width, after, act=None))
            else:
                body = nn.Sequential(conv(before, width, 3, stride), conv(width, after, 3, act=None))
            shortcut = conv(before, after, 1, stride, act=None) if stride > 1 or before != after else None
            layers.append(Residual(body, shortcut, nn.ReLU()))
            before = after
    return nn.Sequential(*layers, *head(before))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "shufflenet_v2": shufflenet_v2,
    "mnasnet": mnasnet,
    "resnet18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
}
