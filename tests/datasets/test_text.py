"""Text encoded as token ids."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onefold import datasets
from onefold.datasets.text import build_vocabulary, encode, tokenize
from onefold.vocabulary.errors import DatasetError, InputError

TOPICS = ("the ball is round", "the market fell", "a ball game", "the market rose", "round and round")


def write(folder: Path, file: str, **change: object) -> None:
    rows = [
        {"split": split, "label": number % 2, "text": f"{TOPICS[number % 5]} {split}{number}", "subject": "Re: hello"}
        for split, size in (("train", 50), ("test", 10))
        for number in range(size)
    ]
    rows[0].update(change)
    (folder / file).write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def test_tokens_are_lower_case_without_punctuation() -> None:
    assert tokenize("Don't PANIC, it's 42!  (really) re: x_y") == [
        "don't",
        "panic",
        "it's",
        "42",
        "really",
        "re",
        "x",
        "y",
    ]
    assert tokenize("--- ''") == []


def test_frequent_words_get_low_ids() -> None:
    texts = [["b", "a", "c"], ["c", "b"], ["c"]]
    assert build_vocabulary(texts, 5) == {"c": 2, "b": 3, "a": 4}
    assert build_vocabulary(texts, 4) == {"c": 2, "b": 3}
    assert build_vocabulary([["b", "a"]], 9) == {"a": 2, "b": 3}


def test_texts_are_truncated_and_padded() -> None:
    ids = encode([["a", "b", "?"], ["b"], []], {"a": 2, "b": 3}, 2)
    assert ids.tolist() == [[2, 3], [3, 0], [0, 0]]
    assert encode([["?", "a"]], {"a": 2}, 3).tolist() == [[1, 2, 0]]
    assert ids.dtype == np.int64


@pytest.mark.parametrize("name", ["newsgroups20", "imdb", "ag_news"])
def test_texts_of_a_file(name: str, data_folder: Path, cache: Path) -> None:
    write(data_folder, f"{name}.jsonl.gz")
    data = getattr(datasets, name)(vocabulary=12, length=6)
    for (ids, labels), size in zip((data.train, data.validation, data.test), (40, 10, 10)):
        assert ids.shape == (size, 6)
        assert (ids.dtype, labels.dtype) == (np.int64, np.int64)
        assert ids.max() < 12
        assert np.bincount(labels).tolist() == [size // 2, size // 2]


def test_words_outside_the_training_split_are_unknown(data_folder: Path, cache: Path) -> None:
    write(data_folder, "imdb.jsonl.gz")
    data = datasets.imdb(vocabulary=1000, length=8)
    last = [ids[np.count_nonzero(ids) - 1] for ids in np.concatenate([data.validation[0], data.test[0]])]
    assert set(last) == {1}  # every text ends in a unique word
    assert (data.train[0] != 1).all()


def test_encoded_data_are_cached(data_folder: Path, cache: Path) -> None:
    write(data_folder, "imdb.jsonl.gz")
    assert datasets.imdb(50, 8) is datasets.imdb(50, 8)
    assert datasets.imdb(50, 9) is not datasets.imdb(50, 8)


@pytest.mark.parametrize("change", [{"split": "dev"}, {"label": "good"}, {"split": ["train"]}])
def test_invalid_split_or_label_is_rejected(change: dict[str, object], data_folder: Path, cache: Path) -> None:
    write(data_folder, "ag_news.jsonl.gz", **change)
    with pytest.raises(DatasetError, match="needs split train or test and an integer label, but got"):
        datasets.ag_news()


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 10), (100, 0)])
def test_invalid_sizes_are_rejected(vocabulary: int, length: int, data_folder: Path, cache: Path) -> None:
    write(data_folder, "ag_news.jsonl.gz")
    with pytest.raises(InputError, match="vocabulary > 2 and length > 0"):
        datasets.ag_news(vocabulary, length)


@pytest.mark.parametrize("name", ["newsgroups20", "imdb", "ag_news"])
def test_missing_file_error_names_the_origin(name: str, data_folder: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=rf"{name}.jsonl.gz is missing: .*split: train or test.*github.com"):
        getattr(datasets, name)()


@pytest.mark.parametrize(
    ("name", "sizes", "classes"),
    [
        ("newsgroups20", (9_052, 2_262, 7_532), 20),
        ("imdb", (5_600, 1_400, 3_000), 2),
        ("ag_news", (16_314, 4_078, 7_600), 4),
    ],
)
def test_real_file(name: str, sizes: tuple[int, int, int], classes: int, real_file: Callable[[str], Path]) -> None:
    real_file(f"{name}.jsonl.gz")
    data = getattr(datasets, name)()
    for (ids, labels), size in zip((data.train, data.validation, data.test), sizes):
        assert len(ids) == size
        assert set(labels) == set(range(classes))
        assert ids.max() < 20_000
        assert (ids[:, 10] > 0).mean() > 0.97
