"""Where files are found, and what is said when they are not there or not what they should be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from onefold.datasets.folder import Source, find, folders, read_arrays, read_rows
from onefold.vocabulary.errors import DatasetError

NUMBERS = Source("numbers.npz", {"x": "uint8 (N, 2)", "y": "uint8 (N)"}, "the shop around the corner")
LINES = Source("lines.jsonl.gz", {"label": "a number", "text": "a string"}, "the library")
X, Y = np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 0], dtype=np.uint8)


def write_numbers(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / NUMBERS.file, **{"x": X, "y": Y, **arrays})
    return folder / NUMBERS.file


def write_lines(folder: Path, *lines: str) -> Path:
    path = folder / LINES.file
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_the_chosen_folder_comes_before_the_cache(chosen: Path, cache: Path) -> None:
    in_cache = write_numbers(cache)
    assert folders() == (chosen, cache)
    assert find(NUMBERS) == in_cache
    assert find(NUMBERS) != (in_chosen := write_numbers(chosen))
    assert find(NUMBERS) == in_chosen


def test_without_a_chosen_folder_the_cache_is_searched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEFOLD_DATA", raising=False)
    assert folders() == (cache,)
    with pytest.raises(DatasetError, match="ONEFOLD_DATA is not set"):
        find(NUMBERS)


def test_a_missing_file_is_named_with_the_places_searched_and_its_origin(chosen: Path, cache: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        find(NUMBERS)
    for part in ("numbers.npz is missing", str(chosen), str(cache), "Put numbers.npz", "$ONEFOLD_DATA"):
        assert part in str(caught.value)
    assert "x: uint8 (N, 2), y: uint8 (N)" in str(caught.value)
    assert "the shop around the corner" in str(caught.value)
    assert caught.value.exit_code == 2


def test_arrays_come_back_as_they_were_written(chosen: Path, cache: Path) -> None:
    write_numbers(chosen, more=np.zeros(1))
    arrays = read_arrays(NUMBERS)
    assert arrays.keys() == {"x", "y"}
    np.testing.assert_array_equal(arrays["x"], X)
    np.testing.assert_array_equal(arrays["y"], Y)


@pytest.mark.parametrize("keep", [0, 10, 200, 400])
def test_half_a_file_is_broken(chosen: Path, cache: Path, keep: int) -> None:
    path = write_numbers(chosen)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match="is broken"):
        read_arrays(NUMBERS)


def test_a_flipped_bit_is_noticed(chosen: Path, cache: Path) -> None:
    path = write_numbers(chosen)
    content = bytearray(path.read_bytes())
    content[content.index(X.tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="is broken"):
        read_arrays(NUMBERS)


def test_a_file_of_another_kind_is_broken(chosen: Path, cache: Path) -> None:
    with (chosen / NUMBERS.file).open("wb") as file:
        np.save(file, X)
    with pytest.raises(DatasetError, match="is broken"):
        read_arrays(NUMBERS)
    (chosen / NUMBERS.file).write_text("<html>Not found</html>")
    with pytest.raises(DatasetError, match="is broken"):
        read_arrays(NUMBERS)


def test_pickled_objects_are_never_loaded(chosen: Path, cache: Path) -> None:
    write_numbers(chosen, y=np.array([{}, {}, {}], dtype=object))
    with pytest.raises(DatasetError, match="allow_pickle"):
        read_arrays(NUMBERS)


def test_a_missing_field_is_named(chosen: Path, cache: Path) -> None:
    np.savez(chosen / NUMBERS.file, x=X)
    with pytest.raises(DatasetError, match="y is not a file in the archive"):
        read_arrays(NUMBERS)


def test_a_field_of_another_shape_is_named(chosen: Path, cache: Path) -> None:
    write_numbers(chosen, x=X.astype(np.int32))
    with pytest.raises(DatasetError, match=r"x in .* must be uint8 \(N, 2\), but is int32 \(N, 2\)"):
        read_arrays(NUMBERS)


def test_rows_come_back_as_they_were_written(chosen: Path) -> None:
    rows = [{"label": 0, "text": "naïve"}, {"label": 1, "text": "two", "more": 1}]
    assert read_rows(LINES, write_lines(chosen, *map(json.dumps, rows))) == rows


@pytest.mark.parametrize("line", ['{"label": 0', '{"label": 0}', "[]", "7"])
def test_a_row_that_cannot_be_used_is_an_error(chosen: Path, line: str) -> None:
    with pytest.raises(DatasetError, match=r"is broken|row 2 of .* lacks one of label, text"):
        read_rows(LINES, write_lines(chosen, '{"label": 0, "text": "good"}', line))


@pytest.mark.parametrize("keep", [5, 30, -5])
def test_half_a_text_file_is_broken(chosen: Path, keep: int) -> None:
    path = write_lines(chosen, *['{"label": 0, "text": "good"}'] * 3)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match="is broken"):
        read_rows(LINES, path)


def test_a_download_is_kept_in_the_cache(chosen: Path, cache: Path) -> None:
    asked = []

    def download() -> dict[str, np.ndarray]:
        asked.append(1)
        return {"x": X, "y": Y}

    source = Source(NUMBERS.file, NUMBERS.fields, NUMBERS.origin, download)
    for _ in range(2):
        np.testing.assert_array_equal(read_arrays(source)["x"], X)
    assert asked == [1]
    assert [path.name for path in cache.iterdir()] == [NUMBERS.file]
    assert list(chosen.iterdir()) == []


def test_a_download_that_fails_says_so_and_leaves_nothing(chosen: Path, cache: Path) -> None:
    def download() -> dict[str, np.ndarray]:
        raise DatasetError("its home does not answer")

    with pytest.raises(DatasetError, match=r"numbers.npz is missing: .*, and its home does not answer. Put "):
        find(Source(NUMBERS.file, NUMBERS.fields, NUMBERS.origin, download))
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_an_error(chosen: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match="cannot be written"):
        find(Source(NUMBERS.file, NUMBERS.fields, NUMBERS.origin, lambda: {"x": X, "y": Y}))
