"""Real data sets: embedded, from a folder, or downloaded once with a checksum.

    digits                                       inside scikit-learn, always there
    mnist, fashion_mnist                         downloaded from their homes when no folder has them
    usps, cifar10                                pictures
    newsgroups20, imdb, ag_news                  texts, as word numbers
    speech_commands                              sound
    bccd                                         pictures with boxes around blood cells

Each function returns a `Data` of tuples of numpy arrays, the targets last. Files are looked for in `$ONEFOLD_DATA` and
in the user's cache; `folder.py` says how. A set that cannot be had raises `DatasetError` with what to do about it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.datasets.images import cifar10, digits, fashion_mnist, mnist, usps
    from onefold.datasets.microscopy import bccd
    from onefold.datasets.sound import speech_commands
    from onefold.datasets.text import ag_news, imdb, newsgroups20

# Handed out on first use, so that `import onefold` does not wait for numpy.
_LAZY = {
    "ag_news": "onefold.datasets.text",
    "bccd": "onefold.datasets.microscopy",
    "cifar10": "onefold.datasets.images",
    "digits": "onefold.datasets.images",
    "fashion_mnist": "onefold.datasets.images",
    "imdb": "onefold.datasets.text",
    "mnist": "onefold.datasets.images",
    "newsgroups20": "onefold.datasets.text",
    "speech_commands": "onefold.datasets.sound",
    "usps": "onefold.datasets.images",
}

__all__ = [
    "ag_news",
    "bccd",
    "cifar10",
    "digits",
    "fashion_mnist",
    "imdb",
    "mnist",
    "newsgroups20",
    "speech_commands",
    "usps",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'onefold.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
