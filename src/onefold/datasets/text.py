"""Text as token ids: (N, length) int64 below `vocabulary`, where 0 is padding and 1 an unknown word."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.datasets.data_files import DataFile, find, read_rows
from onefold.datasets.split import stratified_split
from onefold.vocabulary.errors import DatasetError, InputError
from onefold.vocabulary.workload import Data

UNKNOWN_ID = 1
FIRST_WORD_ID = 2
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_FIELDS = {"split": "train or test", "label": "an integer from 0", "text": "a string"}

NEWSGROUPS20 = DataFile(
    "newsgroups20.jsonl.gz",
    {**_FIELDS, "subject": "a string"},
    "the posts of github.com/YunomiXavia/20news-bydate, without headers except the subject",
)
IMDB = DataFile("imdb.jsonl.gz", _FIELDS, "the reviews under data/aclImdb of github.com/dax44/AMLM")
AG_NEWS = DataFile(
    "ag_news.jsonl.gz",
    _FIELDS,
    "test.csv of github.com/mhjabreel/CharCnn_Keras and any part of AG's train.csv, title and description joined",
)


def newsgroups20(vocabulary: int = 20_000, length: int = 256) -> Data:
    """Return 20 Newsgroups: 18,846 posts, 20 classes; a fifth of the training posts validates."""
    return _encoded_data(NEWSGROUPS20, find(NEWSGROUPS20), vocabulary, length)


def imdb(vocabulary: int = 10_000, length: int = 256) -> Data:
    """Return IMDB: movie reviews, negative (0) or positive (1); a fifth of the training reviews validates."""
    return _encoded_data(IMDB, find(IMDB), vocabulary, length)


def ag_news(vocabulary: int = 10_000, length: int = 64) -> Data:
    """Return AG News: world, sports, business or science; a fifth of the training articles validates."""
    return _encoded_data(AG_NEWS, find(AG_NEWS), vocabulary, length)


def tokenize(text: str) -> list[str]:
    """Return the words and numbers of a text in lower case."""
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[Sequence[str]], vocabulary: int) -> dict[str, int]:
    """Map the most frequent words to ids from 2 to `vocabulary` - 1, ties in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST_WORD_ID]
    return {word: number for number, word in enumerate(frequent, start=FIRST_WORD_ID)}


def encode(texts: Sequence[Sequence[str]], word_ids: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """Return the ids of the first `length` words of each text, padded with 0 at the end."""
    ids = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(ids, texts):
        encoded = [word_ids.get(word, UNKNOWN_ID) for word in text[:length]]
        row[: len(encoded)] = encoded
    return ids


@functools.lru_cache(maxsize=4)
def _encoded_data(file: DataFile, path: Path, vocabulary: int, length: int) -> Data:
    """Read and encode a file. Cached, since reading takes a second: callers must not write to the arrays."""
    if vocabulary <= FIRST_WORD_ID or length < 1:
        raise InputError(f"text needs vocabulary > 2 and length > 0, but got {vocabulary} and {length}")
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for row in read_rows(file, path):
        if row["split"] not in ("train", "test") or not isinstance(row["label"], int):
            raise DatasetError(
                f"each row of {path} needs split train or test and an integer label, "
                f"but got {row['split']!r} and {row['label']!r}"
            )
        rows[row["split"]].append(row)
    labels = {split: np.array([row["label"] for row in part], dtype=np.int64) for split, part in rows.items()}
    texts = {
        split: [tokenize(f"{row.get('subject', '')} {row['text']}") for row in part] for split, part in rows.items()
    }
    train, validation = stratified_split(labels["train"], len(labels["train"]) // 5)
    word_ids = build_vocabulary((texts["train"][i] for i in train), vocabulary)
    ids = {split: encode(part, word_ids, length) for split, part in texts.items()}
    return Data(
        train=(ids["train"][train], labels["train"][train]),
        validation=(ids["train"][validation], labels["train"][validation]),
        test=(ids["test"], labels["test"]),
    )
