"""Image classification: (N, channels, height, width) float32, standardized over the training split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.datasets import idx
from onefold.datasets.data_files import DataFile, read_arrays
from onefold.datasets.split import Indices, stratified_split
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data


def _fields(*shape: int) -> dict[str, str]:
    images = f"uint8 ({', '.join(['N', *map(str, shape)])})"
    return {"x_train": images, "y_train": "uint8 (N)", "x_test": images, "y_test": "uint8 (N)"}


MNIST = DataFile(
    "mnist.npz",
    _fields(28, 28),
    "the idx files of MNIST, such as those at https://ossci-datasets.s3.amazonaws.com/mnist",
    download=idx.MNIST.download,
)
FASHION_MNIST = DataFile(
    "fashion_mnist.npz",
    _fields(28, 28),
    "the idx files of github.com/zalandoresearch/fashion-mnist",
    download=idx.FASHION_MNIST.download,
)
USPS = DataFile(
    "usps.npz",
    _fields(16, 16),
    "data/usps.h5 of github.com/niuers/Learning-From-Data-A-Short-Course, its values times 255",
)
CIFAR10 = DataFile(
    "cifar10.npz",
    _fields(32, 32, 3),
    "https://www.cs.toronto.edu/~kriz/cifar.html, all images or equally many of each class",
)

VALIDATION_SHARE = {MNIST.name: 1 / 6, FASHION_MNIST.name: 1 / 6, USPS.name: 1 / 5, CIFAR10.name: 1 / 5}
Scale = tuple[NDArray[Any], NDArray[Any]]  # mean and standard deviation per channel, each (1, channels, 1, 1)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Unscaled images, their classes, and the indices of the train, validation and test splits."""

    pixels: NDArray[Any]  # (N, height, width) or (N, height, width, channels)
    classes: NDArray[np.int64]
    splits: tuple[Indices, Indices, Indices]

    @property
    def scale(self) -> Scale:
        """Return the mean and the standard deviation of the training split."""
        return channel_scale(self._channels_first[self.splits[0]])

    def data(self, scale: Scale | None = None) -> Data:
        """Return the three splits, standardized by `scale`, by default that of the training split."""
        return standardize(self._channels_first, self.classes, *self.splits, scale=scale)

    @property
    def _channels_first(self) -> NDArray[Any]:
        return self.pixels[:, None] if self.pixels.ndim == 3 else self.pixels.transpose(0, 3, 1, 2)


def digits() -> Data:
    """Return scikit-learn's digits: 1,797 images of 8x8 pixels, 10 classes, split 60/20/20. Needs no file."""
    from sklearn.datasets import load_digits  # takes a second to import

    pixels, labels = load_digits(return_X_y=True)
    rest, test = stratified_split(labels, len(labels) // 5)
    train, validation = stratified_split(labels[rest], len(labels) // 5)
    return standardize(pixels.reshape(-1, 1, 8, 8), labels.astype(np.int64), rest[train], rest[validation], test)


def mnist() -> Data:
    """Return MNIST: handwritten digits of 28x28 pixels, 10 classes; 50,000 train, 10,000 validation, 10,000 test."""
    return load_images(MNIST).data()


def fashion_mnist() -> Data:
    """Return Fashion-MNIST: clothing of 28x28 pixels, 10 classes; 50,000 train, 10,000 validation, 10,000 test."""
    return load_images(FASHION_MNIST).data()


def usps() -> Data:
    """Return USPS: handwritten digits of 16x16 pixels, 10 classes; 5,833 train, 1,458 validation, 2,007 test."""
    return load_images(USPS).data()


def cifar10() -> Data:
    """Return CIFAR-10: color photographs of 32x32 pixels, 10 classes; a fifth of the training images validates."""
    return load_images(CIFAR10).data()


def load_images(file: DataFile) -> ImageSet:
    """Return the unscaled images of a file, with part of its training images split off for validation."""
    arrays = read_arrays(file)
    for images, labels in (("x_train", "y_train"), ("x_test", "y_test")):
        if len(arrays[images]) != len(arrays[labels]):
            raise DatasetError(
                f"{images} and {labels} in {file.name} must be equally long, "
                f"but have {len(arrays[images])} and {len(arrays[labels])} entries"
            )
    development = len(arrays["y_train"])
    train, validation = stratified_split(arrays["y_train"], round(development * VALIDATION_SHARE[file.name]))
    pixels = np.concatenate([arrays["x_train"], arrays["x_test"]])
    classes = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    return ImageSet(pixels, classes, (train, validation, np.arange(development, len(classes))))


def channel_scale(images: NDArray[Any]) -> Scale:
    """Return the mean and the standard deviation of each channel."""
    return images.mean(axis=(0, 2, 3), keepdims=True), images.std(axis=(0, 2, 3), keepdims=True)


def standardize(images: NDArray[Any], targets: NDArray[Any], *splits: Indices, scale: Scale | None = None) -> Data:
    """Return the three splits with each channel standardized by `scale`, by default that of the training split.

    Shifted data pass the scale of the clean set, the only one that a deployed network knows.
    """
    mean, deviation = scale or channel_scale(images[splits[0]])

    def scaled_split(indices: Indices) -> tuple[NDArray[np.float32], NDArray[Any]]:
        scaled = images[indices].astype(np.float32, order="C")
        scaled -= mean.astype(np.float32)
        scaled /= deviation.astype(np.float32)
        return scaled, targets[indices]

    train, validation, test = map(scaled_split, splits)
    return Data(train=train, validation=validation, test=test)
