"""Data that differ from what a model was trained on, in the form and on the scale that the model takes.

They are standardised by the clean training part: a deployed model knows no other scale. Parts are those of the clean
set, sample by sample, so nothing that a model is scored on was ever trained on.
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

MARGIN = 4  # pixels of MNIST's pictures on each side that no digit reaches: they are centred in 20x20


def corrupted_cifar10(kind: str, severity: int, seed: int = 0) -> Data:
    """CIFAR-10 with every picture corrupted, standardised as the clean one."""
    check(kind, severity, seed)
    clean = load_images(CIFAR10)
    return replace(clean, pixels=corrupted(clean.pixels, kind, severity, seed)).data(clean.scale)


def corrupted_digits(kind: str, severity: int, seed: int = 0) -> Data:
    """The embedded digits with every picture corrupted, standardised as the clean ones. They need no file."""
    return corrupted_data(digits(), kind, severity, seed)


def corrupted_data(data: Data, kind: str, severity: int, seed: int = 0) -> Data:
    """The pictures of a data set corrupted; targets stay as they are.

    Each part must be pictures (N, channels, height, width) of floats on any scale, and targets. What each channel spans
    in the training part is taken as 0 to 255; pictures are corrupted there and put back on their scale.
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
    # All parts in one go: what is drawn for one picture is drawn for no other.
    pixels = np.concatenate([_as_bytes(part, low, span) for part in known])
    changed = corrupted(pixels, kind, severity, seed).transpose(0, 3, 1, 2)
    ends = np.cumsum([len(part) for part in known])[:-1]
    scaled = iter([(part * (span / 255) + low).astype(low.dtype, order="C") for part in np.split(changed, ends)])
    return Data(*(None if part is None else (next(scaled), part[-1]) for part in given))


def usps_as_mnist() -> Data:
    """USPS for a model of MNIST: 16x16 pixels stretched to the 20x20 of its digits, with its margin and its scale."""
    clean = load_images(USPS)
    inner = _resized(clean.pixels, stretched(20, clean.pixels.shape[1]))
    padded = np.pad(inner, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    return replace(clean, pixels=padded).data(load_images(MNIST).scale)


def mnist_as_usps() -> Data:
    """MNIST for a model of USPS: the 20x20 pixels inside the margin shrunk to 16x16, on its scale."""
    clean = load_images(MNIST)
    inner = clean.pixels[:, MARGIN:-MARGIN, MARGIN:-MARGIN]
    return replace(clean, pixels=_resized(inner, areas(16, inner.shape[1]))).data(load_images(USPS).scale)


def only_classes(data: Data, classes: Sequence[int]) -> Data:
    """All samples of these classes, in all parts: what a model knows before new classes come. Numbers stay."""
    _check_classes(classes, _labels(data.train))

    def part(given: Any) -> Any:
        return None if given is None else _chosen(given, np.flatnonzero(np.isin(_labels(given), list(classes))))

    return Data(part(data.train), part(data.validation), part(data.test))


def new_classes(data: Data, old: Sequence[int], replay: int, seed: int = 0) -> Data:
    """What there is to learn from when new classes come: all samples of them, and a memory of the old ones.

    The memory has `replay` samples, as many of each old class as can be. Validation and test have all classes.
    """
    labels = _labels(data.train)
    _check_classes(old, labels)
    is_old = np.isin(labels, list(old))
    if is_old.all():
        raise InputError(f"all classes of the data are old ({sorted(set(old))}); leave those out that are new")
    if not 0 <= replay <= np.count_nonzero(is_old):
        raise InputError(
            f"the old classes have {np.count_nonzero(is_old)} samples to train, so replay goes from 0 to that, "
            f"but got {replay}"
        )
    kept = np.concatenate([np.flatnonzero(~is_old), _memory(labels, np.flatnonzero(is_old), seed)[:replay]])
    return Data(_chosen(data.train, np.sort(kept)), data.validation, data.test)


def _memory(labels: NDArray[Any], candidates: Indices, seed: int) -> Indices:
    """An order of the candidates in which every beginning has all their classes as evenly as can be."""
    shuffled = np.random.RandomState(seed).permutation(candidates)
    rank = np.empty(len(shuffled), dtype=np.intp)
    for label in np.unique(labels[shuffled]):
        members = labels[shuffled] == label
        rank[members] = np.arange(np.count_nonzero(members))
    return shuffled[np.argsort(rank, kind="stable")]


def _images(part: Any) -> NDArray[Any]:
    """The pictures of a part, as they are."""
    found = "a data set that is read sample by sample"
    if isinstance(part, (tuple, list)):
        images = np.asarray(part[0])
        if len(part) == 2 and images.ndim == 4 and images.dtype.kind == "f" and images.size:
            return images
        found = ", ".join(f"{np.asarray(array).dtype} {tuple(array.shape)}" for array in part)
    raise InputError(
        "only pictures can be corrupted: floats (N, channels, height, width), the targets beside them, but the data "
        f"are {found}"
    )


def _as_bytes(images: NDArray[Any], low: NDArray[Any], span: NDArray[Any]) -> NDArray[np.uint8]:
    levels = np.rint(np.clip((images - low) / span, 0, 1) * 255)
    pixels: NDArray[np.uint8] = levels.astype(np.uint8).transpose(0, 2, 3, 1)
    return pixels


def _resized(pixels: NDArray[np.uint8], weights: Weights) -> NDArray[np.uint8]:
    """Square pictures, rows and columns read alike."""
    return np.rint(resampled(pixels.astype(np.float32), weights, weights)).astype(np.uint8)


def _labels(part: Any) -> NDArray[Any]:
    if isinstance(part, (tuple, list)):
        labels = np.asarray(part[-1])
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            return labels
    raise InputError("classes can be chosen where each part is a tuple of arrays, class numbers last")


def _chosen(part: Any, places: Indices) -> tuple[Any, ...]:
    return tuple(array[places] for array in part)


def _check_classes(classes: Sequence[int], labels: NDArray[Any]) -> None:
    known = np.unique(labels).tolist()
    if not classes or not set(classes) <= set(known):
        raise InputError(f"the classes must be some of {known}, but got {sorted(classes)}")
