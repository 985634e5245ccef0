"""Image datasets: shapes, scales and splits, on tiny and on real files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onefold import Data, datasets
from onefold.vocabulary.errors import DatasetError

FILE_SHAPES = {"usps": (16, 16), "cifar10": (32, 32, 3)}


def write(folder: Path, name: str, train: int = 50, test: int = 10, labels: int | None = None) -> None:
    rng = np.random.RandomState(0)
    np.savez(
        folder / f"{name}.npz",
        x_train=rng.randint(0, 256, (train, *FILE_SHAPES[name])).astype(np.uint8),
        y_train=(np.arange(train if labels is None else labels) % 10).astype(np.uint8),
        x_test=rng.randint(0, 256, (test, *FILE_SHAPES[name])).astype(np.uint8),
        y_test=(np.arange(test) % 10).astype(np.uint8),
    )


def check(data: Data, sizes: tuple[int, int, int], shape: tuple[int, ...], classes: int = 10) -> None:
    for (images, labels), size in zip((data.train, data.validation, data.test), sizes):
        assert images.shape == (size, *shape)
        assert (images.dtype, labels.dtype) == (np.float32, np.int64)
        assert images.flags.c_contiguous
        assert len(labels) == size
        assert set(labels) == set(range(classes))
    np.testing.assert_allclose(data.train[0].mean(axis=(0, 2, 3)), 0, atol=1e-3)
    np.testing.assert_allclose(data.train[0].std(axis=(0, 2, 3)), 1, atol=1e-3)


def test_digits_are_stratified() -> None:
    data = datasets.digits()
    check(data, (1079, 359, 359), (1, 8, 8))
    shares = [np.bincount(labels) / len(labels) for _, labels in (data.train, data.validation, data.test)]
    np.testing.assert_allclose(shares[1], shares[0], atol=0.005)
    np.testing.assert_allclose(shares[2], shares[0], atol=0.005)


def test_digits_splits_are_disjoint_and_reproducible() -> None:
    parts = [{image.tobytes() for image in part[0]} for part in (datasets.digits().train, datasets.digits().test)]
    assert not parts[0] & parts[1]
    assert datasets.digits().validation[1][:12].tolist() == [5, 1, 5, 2, 1, 7, 2, 3, 7, 3, 9, 5]


@pytest.mark.parametrize(("name", "shape"), [("usps", (1, 16, 16)), ("cifar10", (3, 32, 32))])
def test_images_of_a_file(name: str, shape: tuple[int, ...], data_folder: Path, cache: Path) -> None:
    write(data_folder, name)
    check(getattr(datasets, name)(), (40, 10, 10), shape)


def test_channels_come_first(data_folder: Path, cache: Path) -> None:
    write(data_folder, "cifar10")
    with np.load(data_folder / "cifar10.npz") as file:
        red = file["x_test"][:, :, :, 0].astype(float)
    assert np.corrcoef(red.ravel(), datasets.cifar10().test[0][:, 0].ravel())[0, 1] == pytest.approx(1)


def test_missing_labels_are_rejected(data_folder: Path, cache: Path) -> None:
    write(data_folder, "usps", labels=49)
    with pytest.raises(DatasetError, match=r"x_train and y_train in usps.npz must be equally long, but have 50 and 49"):
        datasets.usps()


@pytest.mark.parametrize("name", FILE_SHAPES)
def test_missing_file_error_names_the_origin(name: str, data_folder: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=f"{name}.npz is missing: .*Origin: .*(github.com|toronto.edu)"):
        getattr(datasets, name)()


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [
        ("mnist", (50_000, 10_000, 10_000), (1, 28, 28)),
        ("fashion_mnist", (50_000, 10_000, 10_000), (1, 28, 28)),
        ("usps", (5_833, 1_458, 2_007), (1, 16, 16)),
        ("cifar10", (16_000, 4_000, 5_000), (3, 32, 32)),
    ],
)
def test_real_file(
    name: str, sizes: tuple[int, int, int], shape: tuple[int, ...], real_file: Callable[[str], Path]
) -> None:
    real_file(f"{name}.npz")
    check(getattr(datasets, name)(), sizes, shape)


def test_import_stays_light() -> None:
    """Importing the packages must import no heavy dependency."""
    heavy = "{'torch', 'sklearn', 'scipy', 'numpy'} & set(sys.modules)"
    program = f"import sys, onefold.datasets, onefold.workloads; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves() -> None:
    for name in datasets.__all__:
        assert callable(getattr(datasets, name))
        assert name in dir(datasets)
    with pytest.raises(AttributeError, match="no attribute 'imagenet'"):
        _ = datasets.imagenet
