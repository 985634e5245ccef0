"""ResNet-50, MobileNetV2 and ViT-Tiny in their ImageNet layout, as workloads on CIFAR-10 at 64 pixels.

The images are upsampled inside the network, so that new data and the reference set keep 32 pixels. Training favors low
cost over accuracy: one-cycle learning rates, bfloat16 autocast, and most epochs at half the resolution or, in the ViT,
with 0.4 of the patches (PatchDropout).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Space, Workload, datasets
from onefold.workloads.mobilenet import InvertedResidual
from onefold.workloads.vit import Attention, EncoderBlock

SIDE, CLASSES = 64, 10
HELD_OUT = 1000  # clean images for validation, and as many for the test; the others are left for new data
WARM_UP_SHARE = 0.15  # of the training


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut (He et al. 2016; the stride is in the 3x3 convolution)."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        filters = 4 * inner
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, channels, H, W) to (N, 4 * inner, H / stride, W / stride)."""
        return functional.relu(self.body(images) + self.shortcut(images))


class PatchEmbedding(nn.Module):
    """Patches of 8x8 pixels, projected, with a learned position embedding; a random `patch_share` of them."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(_sinusoids(SIDE // patch, width))
        self.patch_share = 1.0

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, 64, 64) to (N, patches, width)."""
        tokens: Tensor = self.projection(images).flatten(2).transpose(1, 2) + self.position
        if self.patch_share < 1.0:
            tokens = tokens[:, torch.randperm(tokens.shape[1])[: round(self.patch_share * tokens.shape[1])]]
        return tokens


def _sinusoids(grid: int, width: int) -> Tensor:
    """Return sine and cosine embeddings of the rows and columns of a grid (1, grid * grid, width)."""
    quarter = width // 4
    angles = torch.arange(grid)[:, None] / 100 ** (torch.arange(quarter) / quarter)
    axis = torch.cat([angles.sin(), angles.cos()], 1)
    rows, columns = axis[:, None].expand(-1, grid, -1), axis[None].expand(grid, -1, -1)
    return 0.5 * torch.cat([rows, columns], 2).reshape(1, grid * grid, width)


class MeanToken(nn.Module):
    """The mean of all tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (N, tokens, width) to (N, width)."""
        return tokens.mean(1)


class UpsampledCifar10(Workload):
    """CIFAR-10 classification at 64 pixels. Subclasses define the layers and how the first epochs are made cheaper."""

    rate: ClassVar[float]
    decay: ClassVar[float]
    reduced_share: ClassVar[float]  # of the training, at reduced cost
    has_bfloat16: ClassVar[bool] = True
    samples: ClassVar[int] = 40_000  # of an epoch
    space = Space(model=dict(dropout=Choice(0.0)), training=dict(batch_size=Choice(128)))

    def layers(self, config: Config) -> list[nn.Module]:
        """Return the layers of the network for images of 64 pixels."""
        raise NotImplementedError

    def set_reduced(self, network: nn.Sequential, *, is_reduced: bool) -> None:
        """Train the network at half of its resolution, or at the full one."""
        network[0].size = (SIDE // 2, SIDE // 2) if is_reduced else (SIDE, SIDE)  # type: ignore[assignment]

    def build(self, config: Config) -> nn.Module:
        upsampling = nn.Upsample((SIDE, SIDE), mode="bilinear", align_corners=False)
        return nn.Sequential(upsampling, *self.layers(config)).to(memory_format=torch.channels_last)

    def data(self) -> Data:
        data = datasets.cifar10()
        validation, test = (tuple(array[-HELD_OUT:] for array in part) for part in (data.validation, data.test))
        return Data(tuple(array[: self.samples] for array in data.train), validation, test)

    def optimizer(self, model: nn.Module, config: Config) -> Any:  # noqa: ARG002
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=self.decay)

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:  # noqa: ARG002
        return EpochCounter(optimizer, epochs)

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> dict[str, float]:
        """Train with one-cycle rates over all epochs; images are flipped and shifted at random."""
        group = optimizer.param_groups[0]
        steps, losses = self.samples / config.batch_size, []
        for step, (images, targets) in enumerate(batches):
            done = min(1.0, (group["epoch"] + step / steps) / group["epochs"])
            for parameters in optimizer.param_groups:
                parameters["lr"] = self.rate * min(1.0, done / WARM_UP_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
            self.set_reduced(model, is_reduced=done < self.reduced_share)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.has_bfloat16):
                outputs = model(_augmented(images).contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(outputs.float(), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        self.set_reduced(model, is_reduced=False)
        return {"train_loss": sum(losses) / max(1, len(losses))}


class EpochCounter:
    """A scheduler that tells the optimizer's first group how many epochs are done."""

    def __init__(self, optimizer: Any, epochs: int) -> None:
        self.optimizer = optimizer
        optimizer.param_groups[0].update({"epoch": 0, "epochs": epochs})

    def step(self) -> None:
        """Count an epoch."""
        self.optimizer.param_groups[0]["epoch"] += 1

    def state_dict(self) -> dict[str, int]:
        """Return the epochs that are done."""
        return {"epoch": self.optimizer.param_groups[0]["epoch"]}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after this many epochs."""
        self.optimizer.param_groups[0]["epoch"] = state["epoch"]


def _augmented(images: Tensor) -> Tensor:
    """Flip images at random, and shift the batch by up to four pixels."""
    images = torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)
    down, right = (int(offset) for offset in torch.randint(0, 9, (2,)))
    side = images.shape[-1]
    return functional.pad(images, (4, 4, 4, 4))[:, :, down : down + side, right : right + side]


class Resnet50(UpsampledCifar10):
    """ResNet-50."""

    rate, decay, reduced_share = 1e-3, 0.05, 0.8

    def layers(self, config: Config) -> list[nn.Module]:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        channels = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, 64 * 2**stage, stride=2 if stage and not block else 1))
                channels = 256 * 2**stage
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(channels, CLASSES)]
        return [*layers, *head]


class Mobilenet(UpsampledCifar10):
    """MobileNetV2."""

    rate, decay, reduced_share = 3e-3, 0.05, 0.5
    has_bfloat16 = False  # depthwise convolutions are slower in it

    def layers(self, config: Config) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
        channels = 32
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        for expansion, filters, blocks, stride in stages:
            for block in range(blocks):
                layers.append(
                    InvertedResidual(channels, filters, 1 if block else stride, expansion, has_expansion=expansion > 1)
                )
                channels = filters
        layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(config.dropout), nn.Linear(1280, CLASSES)]
        return [*layers, *head]


class QuickMobilenet(Mobilenet):
    """MobileNetV2, trained on a fifth of the images."""

    samples = 8_000


class VitTiny(UpsampledCifar10):
    """ViT-Tiny with patches of 8x8 pixels (Dosovitskiy et al. 2021; Touvron et al. 2021) and mean pooling."""

    width, depth, heads, patch = 192, 12, 3, 8
    rate, decay, reduced_share = 1e-3, 0.05, 0.75

    def layers(self, config: Config) -> list[nn.Module]:
        blocks = [EncoderBlock(self.width, self.heads, expansion=4) for _ in range(self.depth)]
        for block in blocks:
            _initialize_mimetically(block.attention)
        head = [nn.LayerNorm(self.width), MeanToken(), nn.Dropout(config.dropout), nn.Linear(self.width, CLASSES)]
        return [PatchEmbedding(self.width, self.patch), *blocks, *head]

    def set_reduced(self, network: nn.Sequential, *, is_reduced: bool) -> None:
        """Train with 0.4 of the patches, or with all."""
        network[1].patch_share = 0.4 if is_reduced else 1.0  # type: ignore[assignment]


def _initialize_mimetically(attention: Attention) -> None:
    """Initialize attention like that of pretrained networks (Trockman and Kolter 2023), to need far fewer epochs."""
    width, size = attention.projection.in_features, attention.projection.in_features // attention.heads
    with torch.no_grad():
        for head in range(attention.heads):
            rows = slice(head * size, (head + 1) * size)
            product = 0.7 * torch.randn(width, width) / math.sqrt(width) + 0.7 * torch.eye(width)
            left, scale, right = torch.linalg.svd(product)
            root = scale[:size].sqrt()
            attention.qkv.weight[:width][rows] = (left[:, :size] * root).T
            attention.qkv.weight[width : 2 * width][rows] = right[:size] * root[:, None]
        product = 0.4 * torch.randn(width, width) / math.sqrt(width) - 0.4 * torch.eye(width)
        left, scale, right = torch.linalg.svd(product)
        attention.qkv.weight[2 * width :] = scale.sqrt()[:, None] * right
        attention.projection.weight.copy_(left * scale.sqrt())
