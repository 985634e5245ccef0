"""Shifted datasets have the splits and the scale of the clean ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_images import write

from onefold import Data, datasets
from onefold.baselines import shifted_datasets
from onefold.datasets.images import MNIST, load_images
from onefold.vocabulary.errors import InputError

PARTS = ("train", "validation", "test")


def write_mnist(folder: Path) -> None:
    """Write a small file in the format of MNIST, brighter than USPS: digits of 20x20 pixels with a margin of 4."""
    rng = np.random.RandomState(1)
    pixels = np.pad(rng.randint(100, 256, (60, 20, 20)).astype(np.uint8), ((0, 0), (4, 4), (4, 4)))
    labels = (np.arange(60) % 10).astype(np.uint8)
    np.savez(folder / MNIST.name, x_train=pixels[:48], y_train=labels[:48], x_test=pixels[48:], y_test=labels[48:])


def labeled(*counts: int) -> Data:
    """Return a dataset with these numbers of samples of class 0, 1, …, in each split; each input is its index."""

    def part(first: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(len(counts)), counts)
        return np.arange(first, first + len(labels)), labels

    return Data(part(0), part(1000), part(2000))


def recognized_share(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> float:
    """Return the share of samples that are nearest to the mean of their own class."""
    means = np.stack([train[0][train[1] == label].mean(axis=0).ravel() for label in range(10)])
    flat = test[0].reshape(len(test[0]), -1)
    nearest = (np.square(means).sum(axis=1) - 2 * flat @ means.T).argmin(axis=1)
    return float(np.mean(nearest == test[1]))


def test_corrupted_digits_are_the_digits_on_their_scale() -> None:
    clean, foggy = datasets.digits(), shifted_datasets.corrupted_digits("fog", 3)
    for name in PARTS:
        (images, labels), (changed, same) = getattr(clean, name), getattr(foggy, name)
        np.testing.assert_array_equal(labels, same)
        assert (changed.shape, changed.dtype) == (images.shape, np.float32)
        assert changed.flags.c_contiguous
        assert changed.min() >= clean.train[0].min() - 1e-6
        assert changed.max() <= clean.train[0].max() + 1e-6
        assert 0.1 < np.abs(changed - images).mean() < 2


def test_natural_digits_are_the_digits() -> None:
    clean, natural = datasets.digits(), shifted_datasets.corrupted_digits("natural", 5)
    for name in PARTS:
        np.testing.assert_array_equal(getattr(clean, name)[0], getattr(natural, name)[0])


def test_a_corruption_makes_digits_harder_and_repeats() -> None:
    clean = datasets.digits()
    noisy, again, other = (shifted_datasets.corrupted_digits("impulse_noise", 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(noisy.test[0], again.test[0])
    assert (noisy.test[0] != other.test[0]).any()
    moved = shifted_datasets.corrupted_digits("motion_blur", 5)
    assert recognized_share(clean.train, moved.test) < recognized_share(clean.train, clean.test) - 0.05


def test_splits_have_different_noise() -> None:
    images = np.zeros((6, 1, 8, 8), dtype=np.float32)
    images[:, :, :4] = 1
    noisy = shifted_datasets.corrupted_data(Data(*[(images, np.arange(6))] * 3), "gaussian_noise", 5)
    assert (noisy.train[0] != noisy.validation[0]).any()
    assert (noisy.validation[0] != noisy.test[0]).any()


@pytest.mark.parametrize("low", [-3.0, 0.0, 100.0])
@pytest.mark.parametrize("high", [101.0, 1000.0])
def test_any_value_range_is_restored(low: float, high: float) -> None:
    rng = np.random.RandomState(0)
    images = rng.uniform(low, high, (40, 3, 8, 8))
    images[:, 2] = 7.0  # a channel that says nothing
    data = shifted_datasets.corrupted_data(Data((images, np.arange(40))), "gaussian_blur", 1)
    assert data.validation is None
    assert data.test is None
    assert data.train[0].dtype == np.float64
    np.testing.assert_array_equal(data.train[0][:, 2], 7.0)
    assert data.train[0][:, :2].min() >= images[:, :2].min()
    assert data.train[0][:, :2].max() <= images[:, :2].max()
    assert np.abs(data.train[0] - images).mean() < 0.1 * (high - low)


@pytest.mark.parametrize(
    "train",
    [
        (np.zeros((4, 2), dtype=np.float32), np.zeros(4)),
        (np.zeros((4, 1, 8, 8), dtype=np.int64), np.zeros(4)),
        (np.zeros((4, 1, 8, 8)), np.zeros((4, 1, 8, 8)), np.zeros(4)),
        [1, 2, 3].__iter__,
    ],
)
def test_only_images_can_be_corrupted(train: object) -> None:
    with pytest.raises(InputError, match=r"only images can be corrupted: .*, got "):
        shifted_datasets.corrupted_data(Data(train), "fog", 1)


def test_corrupted_cifar10_has_the_scale_of_the_clean_one(data_folder: Path, cache: Path) -> None:
    write(data_folder, "cifar10")
    clean = datasets.cifar10()
    for name in PARTS:
        natural = getattr(shifted_datasets.corrupted_cifar10("natural", 1), name)
        np.testing.assert_array_equal(getattr(clean, name)[0], natural[0])
        np.testing.assert_array_equal(getattr(clean, name)[1], natural[1])
    pale = shifted_datasets.corrupted_cifar10("contrast", 4)
    assert pale.train[0].shape == clean.train[0].shape
    assert pale.train[0].std() == pytest.approx(0.3, abs=0.02)  # standardized by itself, it would be 1
    with pytest.raises(InputError, match="did you mean 'contrast'"):
        shifted_datasets.corrupted_cifar10("contrasts", 4)


def test_usps_in_the_format_of_mnist(data_folder: Path, cache: Path) -> None:
    write(data_folder, "usps")
    write_mnist(data_folder)
    clean, other, seen = datasets.usps(), datasets.mnist(), shifted_datasets.usps_as_mnist()
    mean, deviation = (float(value.squeeze()) for value in load_images(MNIST).scale)
    for name in PARTS:
        images, labels = getattr(seen, name)
        np.testing.assert_array_equal(labels, getattr(clean, name)[1])
        assert images.shape[1:] == other.train[0].shape[1:] == (1, 28, 28)
        pixels = images * deviation + mean
        np.testing.assert_allclose(pixels[:, :, :4], 0, atol=1e-3)
        assert pixels[:, :, 4:-4, 4:-4].mean() == pytest.approx(127, abs=4)


def test_mnist_in_the_format_of_usps(data_folder: Path, cache: Path) -> None:
    write(data_folder, "usps")
    write_mnist(data_folder)
    clean, seen = datasets.mnist(), shifted_datasets.mnist_as_usps()
    for name in PARTS:
        images, labels = getattr(seen, name)
        np.testing.assert_array_equal(labels, getattr(clean, name)[1])
        assert images.shape[1:] == (1, 16, 16)
    assert seen.train[0].mean() > 0.5  # brighter than USPS, by whose scale it is standardized


def test_digits_of_one_dataset_are_recognized_by_the_other(real_file: Callable[[str], Path]) -> None:
    real_file("mnist.npz")
    real_file("usps.npz")
    mnist, usps = datasets.mnist(), datasets.usps()
    assert (
        0.5
        < recognized_share(mnist.train, shifted_datasets.usps_as_mnist().test)
        < recognized_share(mnist.train, mnist.test)
    )
    assert (
        0.5
        < recognized_share(usps.train, shifted_datasets.mnist_as_usps().test)
        < recognized_share(usps.train, usps.test)
    )


def test_only_classes() -> None:
    known = shifted_datasets.only_classes(labeled(5, 6, 7), [0, 2])
    for part in (known.train, known.validation, known.test):
        assert np.bincount(part[1]).tolist() == [5, 0, 7]
    assert known.test[0].tolist() == [*range(2000, 2005), *range(2011, 2018)]


def test_new_classes_with_replay() -> None:
    data = labeled(20, 3, 20, 10)
    result = shifted_datasets.new_classes(data, old=[0, 1, 2], replay=13)
    assert np.bincount(result.train[1]).tolist() == [5, 3, 5, 10]  # a class that has no more gives what it has
    assert len(set(result.train[0])) == 23
    np.testing.assert_array_equal(data.train[1][result.train[0]], result.train[1])
    for name in ("validation", "test"):
        np.testing.assert_array_equal(getattr(result, name)[1], getattr(data, name)[1])
    again, other = (shifted_datasets.new_classes(data, [0, 1, 2], 13, seed).train[0].tolist() for seed in (0, 1))
    assert result.train[0].tolist() == again != other
    assert set(shifted_datasets.new_classes(data, [0, 1, 2], 0).train[1]) == {3}
    assert np.bincount(shifted_datasets.new_classes(data, [0, 1, 2], 43).train[1]).tolist() == [20, 3, 20, 10]


def test_missing_splits_stay_missing() -> None:
    assert shifted_datasets.only_classes(Data(labeled(3, 3).train), [0]).validation is None


def test_invalid_classes_are_rejected() -> None:
    data = labeled(4, 4, 4)
    with pytest.raises(InputError, match=r"must be some of \[0, 1, 2\], got \[0, 3\]"):
        shifted_datasets.only_classes(data, [3, 0])
    with pytest.raises(InputError, match="got"):
        shifted_datasets.new_classes(data, [], 2)
    with pytest.raises(InputError, match="must leave out at least one class"):
        shifted_datasets.new_classes(data, [0, 1, 2], 2)
    for replay in (-1, 9):
        with pytest.raises(InputError, match=f"replay must be from 0 to 8, .*, got {replay}"):
            shifted_datasets.new_classes(data, [0, 1], replay)
    with pytest.raises(InputError, match="class labels last"):
        shifted_datasets.only_classes(Data((np.zeros((4, 2)), np.zeros(4))), [0])
