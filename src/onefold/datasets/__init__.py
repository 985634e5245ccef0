"""Real data sets: embedded, from a folder, or downloaded once and verified by checksum.

    digits                                       embedded in scikit-learn, always available
    mnist, fashion_mnist                         downloaded if no folder has them
    usps, cifar10                                images
    newsgroups20, imdb, ag_news                  text as token ids
    speech_commands                              audio
    bccd                                         images with bounding boxes of blood cells

and the distribution shifts that a deployed model meets:

    corrupted_digits, corrupted_cifar10          noise, blur, weather and digital corruptions of clean sets
    corrupted_data, corrupted                    the same for any images
    usps_as_mnist, mnist_as_usps                 one data set in the format of another
    only_classes, new_classes                    class-incremental learning: before and after new classes appear
    read_data, write_data, Rows                  a folder of new data, read lazily row by row

Each data set is a function that returns a `Data` of tuples of numpy arrays, targets last. Files are searched in
`$ONEFOLD_DATA` and in the user's cache (`data_files.py`). `DatasetError` says what to do about a file that is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.datasets.arriving import read_data, write_data
    from onefold.datasets.audio import speech_commands
    from onefold.datasets.corruptions import corrupted
    from onefold.datasets.images import cifar10, digits, fashion_mnist, mnist, usps
    from onefold.datasets.microscopy import bccd
    from onefold.datasets.rows import Rows
    from onefold.datasets.shifts import (
        corrupted_cifar10,
        corrupted_data,
        corrupted_digits,
        mnist_as_usps,
        new_classes,
        only_classes,
        usps_as_mnist,
    )
    from onefold.datasets.text import ag_news, imdb, newsgroups20

# Imported lazily, so that `import onefold` does not import numpy.
_LAZY = {
    "Rows": "onefold.datasets.rows",
    "ag_news": "onefold.datasets.text",
    "bccd": "onefold.datasets.microscopy",
    "cifar10": "onefold.datasets.images",
    "corrupted": "onefold.datasets.corruptions",
    "corrupted_cifar10": "onefold.datasets.shifts",
    "corrupted_data": "onefold.datasets.shifts",
    "corrupted_digits": "onefold.datasets.shifts",
    "digits": "onefold.datasets.images",
    "fashion_mnist": "onefold.datasets.images",
    "imdb": "onefold.datasets.text",
    "mnist": "onefold.datasets.images",
    "mnist_as_usps": "onefold.datasets.shifts",
    "new_classes": "onefold.datasets.shifts",
    "newsgroups20": "onefold.datasets.text",
    "only_classes": "onefold.datasets.shifts",
    "read_data": "onefold.datasets.arriving",
    "speech_commands": "onefold.datasets.audio",
    "usps": "onefold.datasets.images",
    "usps_as_mnist": "onefold.datasets.shifts",
    "write_data": "onefold.datasets.arriving",
}

__all__ = [
    "Rows",
    "ag_news",
    "bccd",
    "cifar10",
    "corrupted",
    "corrupted_cifar10",
    "corrupted_data",
    "corrupted_digits",
    "digits",
    "fashion_mnist",
    "imdb",
    "mnist",
    "mnist_as_usps",
    "new_classes",
    "newsgroups20",
    "only_classes",
    "read_data",
    "speech_commands",
    "usps",
    "usps_as_mnist",
    "write_data",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'onefold.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
