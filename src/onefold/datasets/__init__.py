"""Real data sets: embedded, from a folder, or downloaded once with a checksum.

    digits                                       inside scikit-learn, always there
    mnist, fashion_mnist                         downloaded from their homes when no folder has them
    usps, cifar10                                pictures
    newsgroups20, imdb, ag_news                  texts, as word numbers
    speech_commands                              sound
    bccd                                         pictures with boxes around blood cells

and what a model meets after it was deployed:

    corrupted_digits, corrupted_cifar10          noise, blur, bad weather and bad coding on clean sets
    corrupted_data, corrupted                    the same on any pictures
    usps_as_mnist, mnist_as_usps                 one set in the form of another
    only_classes, new_classes                    before new classes come, and when they are there
    read_data, write_data, Rows                  the folder of new data, read row by row

Each set is a function that returns a `Data` of tuples of numpy arrays, the targets last. Files are looked for in
`$ONEFOLD_DATA` and in the user's cache; `folder.py` says how. A set that cannot be had raises `DatasetError` with what
to do about it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.datasets.arriving import read_data, write_data
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
    from onefold.datasets.sound import speech_commands
    from onefold.datasets.text import ag_news, imdb, newsgroups20

# Handed out on first use, so that `import onefold` does not wait for numpy.
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
    "speech_commands": "onefold.datasets.sound",
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
