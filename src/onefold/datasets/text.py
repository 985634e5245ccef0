"""Texts as word numbers: (N, length) int64, where 0 is padding, 1 an unknown word and every number < vocabulary."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.datasets.folder import Source, find, read_rows
from onefold.datasets.split import held_back
from onefold.vocabulary.errors import DatasetError, InputError
from onefold.vocabulary.workload import Data

UNKNOWN = 1
FIRST_WORD = 2
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_FIELDS = {"split": "train or test", "label": "a number from 0", "text": "a string"}

NEWSGROUPS20 = Source(
    "newsgroups20.jsonl.gz",
    {**_FIELDS, "subject": "a string"},
    "the posts of github.com/YunomiXavia/20news-bydate, headers removed but for the subject",
)
IMDB = Source("imdb.jsonl.gz", _FIELDS, "the reviews under data/aclImdb of github.com/dax44/AMLM")
AG_NEWS = Source(
    "ag_news.jsonl.gz",
    _FIELDS,
    "test.csv of github.com/mhjabreel/CharCnn_Keras, and any part of AG's train.csv, title and description joined",
)


def newsgroups20(vocabulary: int = 20_000, length: int = 256) -> Data:
    """18,846 posts to 20 newsgroups, the 20 classes; a fifth of the training part is there to validate."""
    return _encoded(NEWSGROUPS20, find(NEWSGROUPS20), vocabulary, length)


def imdb(vocabulary: int = 10_000, length: int = 256) -> Data:
    """Film reviews, bad or good; a fifth of the file's training part is there to validate."""
    return _encoded(IMDB, find(IMDB), vocabulary, length)


def ag_news(vocabulary: int = 10_000, length: int = 64) -> Data:
    """News in brief: world, sports, business or science; a fifth of the file's training part is there to validate."""
    return _encoded(AG_NEWS, find(AG_NEWS), vocabulary, length)


def words(text: str) -> list[str]:
    """The words and numbers of a text in lower case."""
    return _WORD.findall(text.lower())


def numbering(texts: Iterable[Sequence[str]], vocabulary: int) -> dict[str, int]:
    """The most frequent words, as many as fit below `vocabulary`, numbered from 2; equals go by alphabet."""
    counts = Counter(word for text in texts for word in text)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST_WORD]
    return {word: number for number, word in enumerate(frequent, start=FIRST_WORD)}


def numbered(texts: Sequence[Sequence[str]], numbers: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """The first `length` words of each text as numbers, padded behind with 0."""
    ids = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(ids, texts):
        known = [numbers.get(word, UNKNOWN) for word in text[:length]]
        row[: len(known)] = known
    return ids


@functools.lru_cache(maxsize=4)
def _encoded(source: Source, path: Path, vocabulary: int, length: int) -> Data:
    """Kept for the life of the process, because reading takes a second; nobody may write into these arrays."""
    if vocabulary <= FIRST_WORD or length < 1:
        raise InputError(f"a text needs vocabulary > 2 and length > 0, but got {vocabulary} and {length}")
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for row in read_rows(source, path):
        if row["split"] not in ("train", "test") or not isinstance(row["label"], int):
            raise DatasetError(
                f"{path} must have split train or test and a number as label, "
                f"but got {row['split']!r} and {row['label']!r}"
            )
        rows[row["split"]].append(row)
    labels = {split: np.array([row["label"] for row in part], dtype=np.int64) for split, part in rows.items()}
    texts = {split: [words(f"{row.get('subject', '')} {row['text']}") for row in part] for split, part in rows.items()}
    train, validation = held_back(labels["train"], len(labels["train"]) // 5)
    numbers = numbering((texts["train"][i] for i in train), vocabulary)
    ids = {split: numbered(part, numbers, length) for split, part in texts.items()}
    return Data(
        train=(ids["train"][train], labels["train"][train]),
        validation=(ids["train"][validation], labels["train"][validation]),
        test=(ids["test"], labels["test"]),
    )
