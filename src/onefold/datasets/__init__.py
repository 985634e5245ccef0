"""Real datasets: embedded, from a folder, or downloaded once and verified by checksum.

    digits                                       embedded in scikit-learn, always available
    mnist, fashion_mnist                         downloaded if no folder has them
    usps, cifar10                                images
    newsgroups20, imdb, ag_news                  text as token ids
    speech_commands                              audio
    bccd                                         images with bounding boxes of blood cells

and new data that a deployed model meets:

    read_data, write_data, Rows                  a folder of new data, read lazily row by row

Each dataset is a function that returns a `Data` of tuples of numpy arrays, targets last. Files are searched in
`$ONEFOLD_DATA` and in the user's cache (`data_files.py`). `DatasetError` says what to do about a file that is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.datasets.audio import speech_commands
    from onefold.datasets.images import cifar10, digits, fashion_mnist, mnist, usps
    from onefold.datasets.microscopy import bccd
    from onefold.datasets.new_data import read_data, write_data
    from onefold.datasets.rows import Rows
    from onefold.datasets.text import ag_news, imdb, newsgroups20

# Imported lazily, so that `import onefold` does not import numpy.
_LAZY = {
    "Rows": "onefold.datasets.rows",
    "ag_news": "onefold.datasets.text",
    "bccd": "onefold.datasets.microscopy",
    "cifar10": "onefold.datasets.images",
    "digits": "onefold.datasets.images",
    "fashion_mnist": "onefold.datasets.images",
    "imdb": "onefold.datasets.text",
    "mnist": "onefold.datasets.images",
    "newsgroups20": "onefold.datasets.text",
    "read_data": "onefold.datasets.new_data",
    "speech_commands": "onefold.datasets.audio",
    "usps": "onefold.datasets.images",
    "write_data": "onefold.datasets.new_data",
}

__all__ = [
    "Rows",
    "ag_news",
    "bccd",
    "cifar10",
    "digits",
    "fashion_mnist",
    "imdb",
    "mnist",
    "newsgroups20",
    "read_data",
    "speech_commands",
    "usps",
    "write_data",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'onefold.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
