"""Download, verify and parse the four idx files of MNIST and its drop-in replacements."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import struct
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.log import log_of

FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
logger = log_of(__name__)
UNSIGNED_BYTE = 8
TIMEOUT_S = 30.0
MAX_BYTES = 50_000_000  # of the largest of the files: 60,000 images of 28x28 pixels


@dataclass(frozen=True)
class IdxMirror:
    """A URL that serves the four files, gzipped.

    `sha256` covers the decompressed content, since mirrors compress the same bytes differently.
    """

    url: str
    sha256: Mapping[str, str]

    def download(self) -> dict[str, NDArray[Any]]:
        """Return the four arrays; raises DatasetError if a download fails or a checksum differs."""
        return {field: parse(self._fetch(field)) for field in FILES}

    def _fetch(self, field: str) -> bytes:
        url = f"{self.url}/{FILES[field]}.gz"
        try:
            logger.info("downloading %s", url)
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                content = gzip.GzipFile(fileobj=io.BytesIO(response.read(MAX_BYTES))).read(MAX_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetError(f"{url} cannot be downloaded ({error})") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256[field]:
            raise DatasetError(f"checksum of {url} differs: expected SHA-256 {self.sha256[field]}, got {digest}")
        return content


def parse(content: bytes) -> NDArray[np.uint8]:
    """Parse an idx file of unsigned bytes: two zeros, the type, the number of dimensions, their sizes, the data."""
    if len(content) < 4 or content[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise DatasetError(f"an idx file of unsigned bytes starts with 00 00 08, but got {content[:4].hex(' ')}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DatasetError(f"an idx header of rank {content[3]} has {start} bytes, but the file has {len(content)}")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DatasetError(f"idx data of shape {shape} have {math.prod(shape)} bytes, but got {len(content) - start}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


MNIST = IdxMirror(
    url="https://ossci-datasets.s3.amazonaws.com/mnist",
    sha256={
        "x_train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "y_train": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "x_test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "y_test": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

FASHION_MNIST = IdxMirror(
    url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    sha256={
        "x_train": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "y_train": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "x_test": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "y_test": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)
