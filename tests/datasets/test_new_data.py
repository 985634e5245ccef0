"""Folders of new data are read lazily; malformed ones are rejected."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import Data, datasets
from onefold.baselines import shifted_datasets
from onefold.datasets import Rows, read_data, write_data
from onefold.datasets.new_data import check_destination
from onefold.vocabulary.errors import DatasetError

INPUTS = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
TARGETS = np.arange(10) % 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small valid folder."""
    return write_data(tmp_path / "new", Data((INPUTS, TARGETS)))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = tmp_path_factory.mktemp("rows") / "inputs.npy"
    np.save(path, INPUTS)
    return Rows(path)


def test_data_round_trips(tmp_path: Path) -> None:
    data = datasets.digits()
    result = read_data(write_data(tmp_path / "a" / "new", data))
    for before, after in zip((data.train, data.validation, data.test), (result.train, result.validation, result.test)):
        for array, rows in zip(before, after):
            assert isinstance(rows, Rows)
            assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (array.shape, array.dtype, array.ndim, len(array))
            np.testing.assert_array_equal(rows[:], array)
    assert sorted(path.name for path in (tmp_path / "a" / "new").iterdir()) == sorted(
        f"{part}{name}.npy" for part in ("", "validation_", "test_") for name in ("inputs", "targets")
    )


def test_the_files_are_numpy_arrays(folder: Path) -> None:
    np.testing.assert_array_equal(np.load(folder / "inputs.npy", allow_pickle=False), INPUTS)
    np.testing.assert_array_equal(np.load(folder / "targets.npy", allow_pickle=False), TARGETS)


def test_several_inputs_are_numbered(tmp_path: Path) -> None:
    given = (INPUTS, np.arange(10, dtype=np.int64), INPUTS[:, 0], TARGETS)
    result = read_data(write_data(tmp_path / "new", Data(given, validation=given)))
    assert (tmp_path / "new" / "validation_inputs2.npy").is_file()
    assert result.test is None
    for part in (result.train, result.validation):
        for array, rows in zip(given, part):
            np.testing.assert_array_equal(rows[:], array)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int8", "uint8", "int64", "bool"])
def test_every_numeric_type(tmp_path: Path, kind: str) -> None:
    values = (np.arange(12).reshape(6, 2) % 2).astype(kind)
    result = read_data(write_data(tmp_path / "new", Data((values, values[:, 0])))).train[0]
    assert result[[1]].dtype == kind
    np.testing.assert_array_equal(result[[5, 0]], values[[5, 0]])


def test_strided_arrays_tensors_and_rows_can_be_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    turned = INPUTS.transpose(0, 2, 1)
    first = read_data(write_data(tmp_path / "one", Data((turned, torch.from_numpy(TARGETS)))))
    second = read_data(write_data(tmp_path / "two", first))
    np.testing.assert_array_equal(second.train[0][:], turned)
    np.testing.assert_array_equal(second.train[1][:], TARGETS)


@given(wanted=st.one_of(
    st.lists(st.integers(-10, 9), max_size=30).map(lambda places: np.array(places, dtype=np.intp)),
    st.lists(st.booleans(), min_size=10, max_size=10).map(np.array),
    st.slices(10),
    st.integers(-10, 9),
    st.integers(0, 9).map(np.int64),
))  # fmt: skip
def test_rows_are_read_as_from_an_array(rows: Rows, wanted: object) -> None:
    np.testing.assert_array_equal(rows[wanted], INPUTS[wanted])  # type: ignore[index]


def test_rows_can_be_iterated_and_converted(rows: Rows) -> None:
    np.testing.assert_array_equal(list(rows), INPUTS)
    np.testing.assert_array_equal(np.asarray(rows), INPUTS)
    assert np.asarray(rows, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(rows, copy=False)
    assert repr(rows).endswith("inputs.npy, float32 (10, 2, 2))")


@pytest.mark.parametrize("wanted", [10, -11, [0, 10], [-11], [True] * 9])
def test_missing_rows_raise(rows: Rows, wanted: object) -> None:
    with pytest.raises(IndexError, match="has 10 rows"):
        _ = rows[wanted]


def test_rows_are_indexed_by_integers(rows: Rows) -> None:
    assert rows[[]].shape == (0, 2, 2)
    np.testing.assert_array_equal(rows[np.array([9, 0], dtype=np.uint8)], INPUTS[[9, 0]])
    for wrong in ([0.5], [[0, 1]], ["a"]):
        with pytest.raises(IndexError, match="1-D array of integers, but got"):
            _ = rows[wrong]


def test_rows_are_copied_into_the_callers_array(rows: Rows) -> None:
    into = np.zeros((3, 2, 2), dtype=np.float32)
    rows.read(np.array([7, 8, 1]), into)
    np.testing.assert_array_equal(into, INPUTS[[7, 8, 1]])
    for wrong in (into.astype(np.float64), into[:2], np.asfortranarray(into)):
        with pytest.raises(ValueError, match=r"must be float32 \(3, 2, 2\) in C order"):
            rows.read(np.array([7, 8, 1]), wrong)


def test_rows_can_be_closed_and_pickled(folder: Path) -> None:
    rows = Rows(folder / "inputs.npy")
    other = pickle.loads(pickle.dumps(rows))
    rows.close()
    rows.close()
    with pytest.raises(DatasetError, match="is closed; open the data again"):
        _ = rows[0]
    np.testing.assert_array_equal(other[0], INPUTS[0])


def test_a_large_file_is_not_loaded(tmp_path: Path) -> None:
    inputs = np.zeros((2000, 4096), dtype=np.float32)  # 32 MB
    write_data(tmp_path / "new", Data((inputs, np.zeros(2000))))
    tracemalloc.start()
    try:
        result = read_data(tmp_path / "new").train[0]
        for start in range(0, 2000, 20):
            result[np.arange(start, start + 20)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2e6
    if sys.platform == "linux":
        assert "inputs.npy" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_works(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "new.npz", inputs=INPUTS, targets=TARGETS, test_inputs=INPUTS[:4], test_targets=TARGETS[:4])
    result = read_data(tmp_path / "new.npz")
    assert result.validation is None
    assert isinstance(result.train[0], Rows) == (save is np.savez)
    np.testing.assert_array_equal(result.train[0][[9, 3]], INPUTS[[9, 3]])
    np.testing.assert_array_equal(result.train[1][:], TARGETS)
    np.testing.assert_array_equal(result.test[0][:], INPUTS[:4])
    if save is np.savez:
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(result.test[1]))[:], TARGETS[:4])


def test_classes_can_be_chosen_from_files(folder: Path) -> None:
    result = shifted_datasets.only_classes(read_data(folder), [1])
    np.testing.assert_array_equal(result.train[0], INPUTS[TARGETS == 1])


def test_a_folder_is_replaced_as_a_whole(folder: Path) -> None:
    write_data(folder, Data((INPUTS, INPUTS, TARGETS), test=(INPUTS, INPUTS, TARGETS)))
    old = read_data(folder)
    (folder / ".part-left-behind").mkdir()
    (folder / ".part-left-behind" / "inputs.npy").write_bytes(b"half")
    write_data(folder, Data((old.train[0], TARGETS + 1)))  # from the very files that it replaces
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.npy", "targets.npy"]
    np.testing.assert_array_equal(read_data(folder).train[0][:], INPUTS)
    np.testing.assert_array_equal(old.train[2][:], TARGETS)


def test_a_folder_with_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match=r"has other files in it, such as notes.txt; choose a new or an empty"):
        write_data(tmp_path, Data((INPUTS, TARGETS)))
    with pytest.raises(DatasetError, match=r"is written to a folder, but .*notes.txt is a file"):
        check_destination(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(DatasetError, match=r"cannot write .*; choose another folder"):
        write_data(tmp_path / "notes.txt" / "new", Data((INPUTS, TARGETS)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Data(None), "each split must be a tuple of arrays"),
        (Data([1, 2]), "each split must be a tuple of arrays"),
        (Data((INPUTS, TARGETS), test=(INPUTS,)), "each split must be a tuple of arrays"),
        (Data((INPUTS, TARGETS[:9])), r"must have equal lengths, got \[10, 9\]"),
        (Data((INPUTS[:0], TARGETS[:0])), "is empty"),
        (Data((np.array([{}] * 10), TARGETS)), r"must hold numbers .*, but holds \|O"),
    ],
)
def test_data_that_cannot_be_written(tmp_path: Path, data: Data, why: str) -> None:
    with pytest.raises(DatasetError, match=why):
        write_data(tmp_path / "new", data)
    assert not (tmp_path / "new").exists()


def test_missing_files_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"there is no folder .*nowhere; new data consists of inputs.npy"):
        read_data(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"empty has no inputs.npy; new data consists of"):
        read_data(tmp_path / "empty")
    (folder / "test_inputs.npy").write_bytes((folder / "inputs.npy").read_bytes())
    with pytest.raises(DatasetError, match=r"new has no test_targets.npy; new data consists of"):
        read_data(folder)
    (folder / "test_inputs.npy").unlink()
    (folder / "targets.npy").unlink()
    with pytest.raises(DatasetError, match=r"new has no targets.npy; new data consists of"):
        read_data(folder)


def test_inputs_must_be_numbered_without_a_gap(folder: Path) -> None:
    np.save(folder / "inputs0.npy", INPUTS)
    with pytest.raises(DatasetError, match=r"has inputs.npy and also inputs0.npy; remove one of them"):
        read_data(folder)
    (folder / "inputs.npy").rename(folder / "inputs2.npy")
    with pytest.raises(DatasetError, match=r"has no inputs1.npy"):
        read_data(folder)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (INPUTS[:9], r"must have equal lengths, got inputs.npy 9, targets.npy 10"),
        (INPUTS[:0], r"is empty: its shape is \(0, 2, 2\)"),
        (np.zeros((10, 0)), r"is empty"),
        (np.float32(3), r"is empty: its shape is \(\)"),
        (np.asfortranarray(INPUTS), r"is in Fortran order, .*numpy.ascontiguousarray"),
        (np.array([{}] * 10), r"must hold numbers in native byte order, but holds \|O; write it again with"),
        (np.array(["a"] * 10), r"must hold numbers"),
        (INPUTS.astype(">f4"), r"must hold numbers in native byte order, but holds >f4"),
        (INPUTS.astype(complex), r"must hold numbers"),
    ],
)
def test_unsupported_arrays_are_rejected(folder: Path, inputs: np.ndarray, why: str) -> None:
    np.save(folder / "inputs.npy", inputs, allow_pickle=True)
    with pytest.raises(DatasetError, match=why):
        read_data(folder)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_objects_in_a_single_file_are_never_loaded(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "new.npz", inputs=np.array([{}] * 10), targets=TARGETS)
    with pytest.raises(DatasetError, match=r"inputs.npy in .*new.npz must hold numbers"):
        read_data(tmp_path / "new.npz")


@pytest.mark.parametrize("keep", [0, 5, 60, 128, 129, -1])
def test_a_truncated_file_is_rejected(folder: Path, keep: int) -> None:
    path = folder / "inputs.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"inputs.npy is (not an .npy file \(.*\); write it|truncated: \d+ bytes)"):
        read_data(folder)


@pytest.mark.parametrize("keep", [0, 100, 600, -1])
def test_a_truncated_npz_file_is_rejected(tmp_path: Path, keep: int) -> None:
    np.savez(tmp_path / "new.npz", inputs=INPUTS, targets=TARGETS)
    (tmp_path / "new.npz").write_bytes((tmp_path / "new.npz").read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"neither a folder nor an .npz file"):
        read_data(tmp_path / "new.npz")


def test_truncation_during_reading_is_detected(folder: Path) -> None:
    rows = Rows(folder / "inputs.npy")
    with (folder / "inputs.npy").open("r+b") as file:
        file.truncate(140)
    with pytest.raises(DatasetError, match="was truncated while it was read"):
        _ = rows[:]


def test_other_file_types_are_rejected(folder: Path) -> None:
    (folder / "inputs.npy").write_text("<html>Not found</html>")
    with pytest.raises(DatasetError, match=r"inputs.npy is not an .npy file .*; write it with numpy.save"):
        read_data(folder)
    (folder / "inputs.npy").unlink()
    (folder / "inputs.npy").mkdir()
    with pytest.raises(DatasetError, match=r"inputs.npy (cannot be read|is not an .npy file)"):
        read_data(folder)


def test_splits_must_have_the_same_format(tmp_path: Path) -> None:
    write_data(tmp_path / "new", Data((INPUTS, TARGETS), validation=(INPUTS[:, :1], TARGETS)))
    with pytest.raises(DatasetError, match=r"the validation split of .* has samples of float32 \(1, 2\), int64 \(\)"):
        read_data(tmp_path / "new")
