"""Search order of data files, and errors for missing or corrupt ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from onefold.datasets import data_files
from onefold.datasets.data_files import DataFile, find, read_arrays, read_rows, search_folders
from onefold.vocabulary.errors import DatasetError

NUMBERS = DataFile("numbers.npz", {"x": "uint8 (N, 2)", "y": "uint8 (N)"}, "example.org/numbers")
LINES = DataFile("lines.jsonl.gz", {"label": "a number", "text": "a string"}, "example.org/lines")
X, Y = np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 0], dtype=np.uint8)


def write_numbers(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / NUMBERS.name, **{"x": X, "y": Y, **arrays})
    return folder / NUMBERS.name


def write_lines(folder: Path, *lines: str) -> Path:
    path = folder / LINES.name
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_data_folder_precedes_cache(data_folder: Path, cache: Path) -> None:
    in_cache = write_numbers(cache)
    assert search_folders() == (data_folder, cache)
    assert find(NUMBERS) == in_cache
    assert find(NUMBERS) != (in_data_folder := write_numbers(data_folder))
    assert find(NUMBERS) == in_data_folder


def test_only_the_cache_is_searched_without_a_data_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEFOLD_DATA", raising=False)
    assert search_folders() == (cache,)
    with pytest.raises(DatasetError, match="ONEFOLD_DATA is not set"):
        find(NUMBERS)


def test_missing_file_error_names_searched_folders_and_origin(data_folder: Path, cache: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        find(NUMBERS)
    for part in ("numbers.npz is missing", str(data_folder), str(cache), "Put numbers.npz", "$ONEFOLD_DATA"):
        assert part in str(caught.value)
    assert "x: uint8 (N, 2), y: uint8 (N)" in str(caught.value)
    assert "example.org/numbers" in str(caught.value)
    assert caught.value.exit_code == 2


def test_arrays_round_trip(data_folder: Path, cache: Path) -> None:
    write_numbers(data_folder, more=np.zeros(1))
    arrays = read_arrays(NUMBERS)
    assert arrays.keys() == {"x", "y"}
    np.testing.assert_array_equal(arrays["x"], X)
    np.testing.assert_array_equal(arrays["y"], Y)


@pytest.mark.parametrize("keep", [0, 10, 200, 400])
def test_truncated_npz_is_corrupt(data_folder: Path, cache: Path, keep: int) -> None:
    path = write_numbers(data_folder)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"is (corrupt|not an .npz or .npy file|not an .npy file) \("):
        read_arrays(NUMBERS)


def test_flipped_bit_is_detected(data_folder: Path, cache: Path) -> None:
    path = write_numbers(data_folder)
    content = bytearray(path.read_bytes())
    content[content.index(X.tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"is (corrupt|not an .npz or .npy file|not an .npy file) \("):
        read_arrays(NUMBERS)


def test_other_file_types_are_corrupt(data_folder: Path, cache: Path) -> None:
    with (data_folder / NUMBERS.name).open("wb") as file:
        np.save(file, X)
    with pytest.raises(DatasetError, match=r"numbers.npz has no array 'x'; write it with x, y. Put numbers.npz into"):
        read_arrays(NUMBERS)
    (data_folder / NUMBERS.name).write_text("<html>Not found</html>")
    with pytest.raises(DatasetError, match=r"is (corrupt|not an .npz or .npy file|not an .npy file) \("):
        read_arrays(NUMBERS)


def test_pickled_objects_are_never_loaded(data_folder: Path, cache: Path) -> None:
    write_numbers(data_folder, y=np.array([{}, {}, {}], dtype=object))
    with pytest.raises(DatasetError, match=r"y.npy in .* must hold numbers"):
        read_arrays(NUMBERS)


def test_missing_array_is_named(data_folder: Path, cache: Path) -> None:
    np.savez(data_folder / NUMBERS.name, x=X)
    with pytest.raises(DatasetError, match=r"numbers.npz has no array 'y'"):
        read_arrays(NUMBERS)


def test_array_of_wrong_dtype_is_named(data_folder: Path, cache: Path) -> None:
    write_numbers(data_folder, x=X.astype(np.int32))
    with pytest.raises(DatasetError, match=r"x in .* must be uint8 \(N, 2\), but is int32 \(N, 2\)"):
        read_arrays(NUMBERS)


def test_arrays_larger_than_the_memory_are_refused_before_they_are_read(
    data_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbers(data_folder)
    monkeypatch.setattr("onefold.arrays.files.free_bytes", lambda: X.nbytes)
    with pytest.raises(DatasetError, match=r"numbers.npz needs 9 B of memory, but 6 B are free; free memory, or .*Put"):
        read_arrays(NUMBERS)


@pytest.mark.parametrize("line", ["x" * 100_000, "x" * 200])
def test_text_larger_than_the_memory_is_refused_while_it_is_read(
    data_folder: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(data_folder, *[json.dumps({"label": 0, "text": line})] * 50)
    monkeypatch.setattr(data_files, "free_bytes", lambda: 2**10 * data_files.TEXT_EXPANSION)
    monkeypatch.setattr(data_files, "LINE_BYTES", 2**14)
    with pytest.raises(DatasetError, match=r"more than 1 KiB of text, for which|has a row of more than 16 KiB; write"):
        read_rows(LINES, path)


def test_rows_round_trip(data_folder: Path) -> None:
    rows = [{"label": 0, "text": "naïve"}, {"label": 1, "text": "two", "more": 1}]
    assert read_rows(LINES, write_lines(data_folder, *map(json.dumps, rows))) == rows


@pytest.mark.parametrize("line", ['{"label": 0', '{"label": 0}', "[]", "7"])
def test_invalid_row_is_rejected(data_folder: Path, line: str) -> None:
    with pytest.raises(DatasetError, match=r"is corrupt|row 2 of .* lacks one of label, text"):
        read_rows(LINES, write_lines(data_folder, '{"label": 0, "text": "good"}', line))


@pytest.mark.parametrize("keep", [5, 30, -5])
def test_truncated_jsonl_is_corrupt(data_folder: Path, keep: int) -> None:
    path = write_lines(data_folder, *['{"label": 0, "text": "good"}'] * 3)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match="is corrupt"):
        read_rows(LINES, path)


def test_download_is_cached(data_folder: Path, cache: Path) -> None:
    calls = []

    def download() -> dict[str, np.ndarray]:
        calls.append(1)
        return {"x": X, "y": Y}

    source = DataFile(NUMBERS.name, NUMBERS.fields, NUMBERS.origin, download)
    for _ in range(2):
        np.testing.assert_array_equal(read_arrays(source)["x"], X)
    assert calls == [1]
    assert [path.name for path in cache.iterdir()] == [NUMBERS.name]
    assert list(data_folder.iterdir()) == []


def test_failed_download_is_reported_and_leaves_no_files(data_folder: Path, cache: Path) -> None:
    def download() -> dict[str, np.ndarray]:
        raise DatasetError("the server does not respond")

    with pytest.raises(DatasetError, match=r"numbers.npz is missing: .*, and the server does not respond. Put "):
        find(DataFile(NUMBERS.name, NUMBERS.fields, NUMBERS.origin, download))
    assert not cache.exists()


def test_unwritable_cache_is_an_error(data_folder: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match="cannot be written"):
        find(DataFile(NUMBERS.name, NUMBERS.fields, NUMBERS.origin, lambda: {"x": X, "y": Y}))
