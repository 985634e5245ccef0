"""Datasets after a distribution shift, in the format that a model of the clean dataset expects.

They are standardized by the clean training split, and have the splits of the clean dataset sample by sample, so that no
test sample is ever trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.baselines.corruptions import NATURAL, check, corrupted
from onefold.baselines.corruptions.resampling import Weights, areas, resampled, stretched
from onefold.datasets.images import CIFAR10, MNIST, USPS, digits, load_images
from onefold.datasets.split import Indices
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.workload import Data

MARGIN = 4  # empty pixels on each side of MNIST images: digits are centered in 20x20


def corrupted_cifar10(kind: str, severity: int, seed: int = 0) -> Data:
    """Return CIFAR-10 with every image corrupted, standardized as the clean dataset."""
    check(kind, severity, seed)
    clean = load_images(CIFAR10)
    return replace(clean, pixels=corrupted(clean.pixels, kind, severity, seed)).data(clean.scale)


def corrupted_digits(kind: str, severity: int, seed: int = 0) -> Data:
    """Return the embedded digits with every image corrupted, standardized as the clean ones. Needs no data file."""
    return corrupted_data(digits(), kind, severity, seed)


def corrupted_data(data: Data, kind: str, severity: int, seed: int = 0) -> Data:
    """Corrupt the images of a dataset; targets are unchanged.

    Each split must be float images (N, channels, height, width) on any scale, and targets. The range of each channel in
    the training split is mapped to 0 to 255 for the corruption, and back.
    """
    check(kind, severity, seed)
    given = [data.train, data.validation, data.test]
    images = [None if part is None else _images(part) for part in given]
    if kind == NATURAL:
        return data
    known = [part for part in images if part is not None]
    low = known[0].min(axis=(0, 2, 3), keepdims=True)
    span = known[0].max(axis=(0, 2, 3), keepdims=True) - low
    span[span == 0] = 1
    # All splits at once, so that no two images share random numbers.
    pixels = np.concatenate([_as_bytes(part, low, span) for part in known])
    changed = corrupted(pixels, kind, severity, seed).transpose(0, 3, 1, 2)
    ends = np.cumsum([len(part) for part in known])[:-1]
    scaled = iter([(part * (span / 255) + low).astype(low.dtype, order="C") for part in np.split(changed, ends)])
    return Data(*(None if part is None else (next(scaled), part[-1]) for part in given))


def usps_as_mnist() -> Data:
    """Return USPS in the format of MNIST: 16x16 pixels upsampled to 20x20, with its margin and its scale."""
    clean = load_images(USPS)
    inner = _resized(clean.pixels, stretched(20, clean.pixels.shape[1]))
    padded = np.pad(inner, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    return replace(clean, pixels=padded).data(load_images(MNIST).scale)


def mnist_as_usps() -> Data:
    """Return MNIST in the format of USPS: the central 20x20 pixels downsampled to 16x16, on its scale."""
    clean = load_images(MNIST)
    inner = clean.pixels[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    return replace(clean, pixels=_resized(inner, areas(16, inner.shape[1]))).data(load_images(USPS).scale)


def only_classes(data: Data, classes: Sequence[int]) -> Data:
    """Return all samples of these classes, in all splits; class numbers are unchanged."""
    _check_classes(classes, _labels(data.train))

    def part(given: Any) -> Any:
        return None if given is None else _chosen(given, np.flatnonzero(np.isin(_labels(given), list(classes))))

    return Data(part(data.train), part(data.validation), part(data.test))


def new_classes(data: Data, old: Sequence[int], replay: int, seed: int = 0) -> Data:
    """Return training data for class-incremental learning: all samples of new classes, and a replay memory of old ones.

    The memory has `replay` samples, balanced over the old classes. Validation and test have all classes.
    """
    labels = _labels(data.train)
    _check_classes(old, labels)
    is_old = np.isin(labels, list(old))
    if is_old.all():
        raise InputError(f"old must leave out at least one class, got all of them: {sorted(set(old))}")
    if not 0 <= replay <= np.count_nonzero(is_old):
        raise InputError(
            f"replay must be from 0 to {np.count_nonzero(is_old)}, the samples of old classes, got {replay}"
        )
    kept = np.concatenate([np.flatnonzero(~is_old), _memory(labels, np.flatnonzero(is_old), seed)[:replay]])
    return Data(_chosen(data.train, np.sort(kept)), data.validation, data.test)


def _memory(labels: NDArray[Any], candidates: Indices, seed: int) -> Indices:
    """Shuffle the candidates so that every prefix is balanced over their classes."""
    shuffled = np.random.RandomState(seed).permutation(candidates)
    rank = np.empty(len(shuffled), dtype=np.intp)
    for label in np.unique(labels[shuffled]):
        members = labels[shuffled] == label
        rank[members] = np.arange(np.count_nonzero(members))
    return shuffled[np.argsort(rank, kind="stable")]


def _images(part: Any) -> NDArray[Any]:
    """Return the images of a split."""
    given = "a dataset that is not a tuple of arrays"
    if isinstance(part, (tuple, list)):
        images = np.asarray(part[0])
        if len(part) == 2 and images.ndim == 4 and images.dtype.kind == "f" and images.size:
            return images
        given = ", ".join(f"{np.asarray(array).dtype} {tuple(array.shape)}" for array in part)
    raise InputError(
        "only images can be corrupted: expected a tuple of float images (N, channels, height, width) and targets, got "
        f"{given}"
    )


def _as_bytes(images: NDArray[Any], low: NDArray[Any], span: NDArray[Any]) -> NDArray[np.uint8]:
    levels = np.rint(np.clip((images - low) / span, 0, 1) * 255)
    pixels: NDArray[np.uint8] = levels.astype(np.uint8).transpose(0, 2, 3, 1)
    return pixels


def _resized(pixels: NDArray[np.uint8], weights: Weights) -> NDArray[np.uint8]:
    """Resample square images."""
    return np.rint(resampled(pixels.astype(np.float32), weights, weights)).astype(np.uint8)


def _labels(part: Any) -> NDArray[Any]:
    if isinstance(part, (tuple, list)):
        labels = np.asarray(part[-1])
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            return labels
    raise InputError("expected a tuple of arrays with integer class labels last")


def _chosen(part: Any, indices: Indices) -> tuple[Any, ...]:
    return tuple(array[indices] for array in part)


def _check_classes(classes: Sequence[int], labels: NDArray[Any]) -> None:
    known = np.unique(labels).tolist()
    if not classes or not set(classes) <= set(known):
        raise InputError(f"classes must be some of {known}, got {sorted(classes)}")
