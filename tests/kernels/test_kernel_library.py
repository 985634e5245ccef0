"""Libraries in deployment folders: writing, reading and serving."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from small_graphs import outputs_of, saved

from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import (
    ARCHIVE,
    INT8,
    LIBRARY,
    MANIFEST,
    LibraryFiles,
    LibraryManifest,
    read_library,
    write_library,
)
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.targets import Target
from onefold.model_folder import open_folder
from onefold.serving.export import samples_beside
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import RuntimeLatency

Array = np.ndarray[Any, Any]
RUNTIMES = (RuntimeLatency("tvm", 1e-4, 1), RuntimeLatency("onnxruntime", 2e-4, 1, "as served"))


def about(target: Target) -> LibraryManifest:
    return LibraryManifest("host", target.name, 1, 2, {"input0": "float32"}, RUNTIMES, "tvm", notes=("first",))


@pytest.fixture(scope="module")
def samples(tiny: Path) -> Array:
    with np.load(samples_beside(tiny)) as kept:
        return np.asarray(kept["input0"])


@pytest.fixture(scope="module")
def folder(
    tiny: Path, samples: Array, runner: CandidateRunner, here: Target, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the tiny model, compiled for a batch size of 2."""
    model = ModelCompiler("two", tiny, [samples[:2]], outputs_of(tiny, [samples[:2]]), runner, 3)
    place = tmp_path_factory.mktemp("deploy")
    write_library(place, LibraryFiles(model.compile({}, tmp_path_factory.mktemp("built") / "two.so")), about(here))
    return place


@pytest.fixture(scope="module")
def compiled(folder: Path) -> CompiledModel:
    described = read_library(open_folder(folder))
    assert described is not None
    return CompiledModel(folder / LIBRARY, described)


@pytest.fixture(scope="module")
def double(runner: CandidateRunner, here: Target, tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """A model with two inputs and two outputs, compiled for a batch size of 1."""
    place = tmp_path_factory.mktemp("double")
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["gap"])]
    shape = ["N", 3]
    file = saved(place / "double.onnx", nodes, {"a": shape, "b": shape}, {"sum": shape, "gap": shape})
    one, other = np.ones((1, 3), np.float32), np.full((1, 3), 2, np.float32)
    model = ModelCompiler("double", file, [one, other], outputs_of(file, [one, other]), runner, 3)
    assert model.time_library(model.compile({}, place / LIBRARY)).error == 0.0
    return CompiledModel(place / LIBRARY, replace(about(here), batch_size=1, inputs={"a": "float32", "b": "float32"}))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_written_library_serves_any_number_of_samples(
    count: int, compiled: CompiledModel, tiny: Path, samples: Array
) -> None:
    (right,) = outputs_of(tiny, [samples[:count]])
    np.testing.assert_allclose(compiled(samples[:count]), right, rtol=1e-4, atol=1e-6)


def test_no_samples_give_no_outputs(compiled: CompiledModel, samples: Array) -> None:
    assert compiled(samples[:0]).shape == (0, 4)


def test_a_result_is_not_overwritten_by_later_calls(double: CompiledModel) -> None:
    one, two = np.ones((1, 3), np.float32), np.full((1, 3), 2, np.float32)
    total, gap = double(one, two)
    total += 1  # results belong to the caller
    double(two, two)
    np.testing.assert_array_equal([total, gap], [one + 3, one - 2])


def test_threads_may_share_a_model(double: CompiledModel) -> None:
    def add(value: int) -> bool:
        one = np.full((1, 3), value, np.float32)
        return all(np.array_equal(double(one, one)[0], 2 * one) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(add, range(4)))


def test_lists_and_other_floats_are_converted(compiled: CompiledModel, samples: Array) -> None:
    np.testing.assert_array_equal(compiled(samples[:2].astype(np.float64)), compiled(samples[:2]))
    np.testing.assert_array_equal(compiled(samples[:1].tolist()), compiled(samples[:1]))
    turned = np.asfortranarray(samples[:2])
    np.testing.assert_array_equal(compiled(turned), compiled(samples[:2]))


def test_several_outputs_are_a_list(double: CompiledModel) -> None:
    one, other = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    total, gap = double(one, other)
    np.testing.assert_array_equal(total, one + 1)
    np.testing.assert_array_equal(gap, one - 1)


def test_a_wrong_number_of_inputs_is_an_error(double: CompiledModel) -> None:
    one = np.ones((1, 3), np.float32)
    for inputs in ((), (one,), (one, one, one)):
        with pytest.raises(ModelError, match=rf"the model takes 2 inputs \(a, b\), got {len(inputs)}"):
            double(*inputs)


def test_different_numbers_of_samples_are_an_error(double: CompiledModel) -> None:
    with pytest.raises(ModelError, match=r"different numbers of samples: \[2, 1\]"):
        double(np.ones((2, 3), np.float32), np.ones((1, 3), np.float32))


@pytest.mark.parametrize(
    "given",
    [np.float32(1), np.ones((1, 3, 8, 9), np.float32), np.ones((3, 8, 8), np.float32), np.ones((1, 3, 8, 8), complex)],
    ids=["a number", "another size", "no batch", "another kind"],
)
def test_inputs_of_another_shape_or_type_are_an_error(given: Any, compiled: CompiledModel, samples: Array) -> None:
    with pytest.raises(ModelError, match=r"the model takes \{'input0': 'float32'\}, the batch first: "):
        compiled(given)
    assert compiled(samples[:1]).shape == (1, 4)  # and it still works


def test_a_manifest_is_read_as_written(folder: Path, here: Target) -> None:
    assert read_library(open_folder(folder)) == about(here)
    assert {path.name for path in folder.iterdir()} == {LIBRARY, MANIFEST}


def test_a_folder_without_kernels_has_no_manifest(tmp_path: Path) -> None:
    assert read_library(open_folder(tmp_path)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"device": 3}'])
def test_an_unreadable_manifest_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ModelError, match=r"kernels\.json cannot be read: .*; compile the model again"):
        read_library(open_folder(tmp_path))


@pytest.mark.parametrize("file", ["../kernels.so", "/tmp/kernels.so", "sub/kernels.so", "model.onnx"])
def test_a_manifest_may_not_name_another_file(file: str, tmp_path: Path, here: Target) -> None:
    write_library(tmp_path, LibraryFiles(None), about(here))
    described = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**described, "file": file}))
    with pytest.raises(ModelError, match=r"names .*, but a library is kernels\.so or kernels\.tar"):
        read_library(open_folder(tmp_path))


def test_a_library_that_cannot_be_loaded_is_an_error(tmp_path: Path, here: Target) -> None:
    with pytest.raises(ModelError, match=r"kernels\.so cannot be loaded: "):
        CompiledModel(tmp_path / LIBRARY, about(here))
    (tmp_path / LIBRARY).write_text("no library")
    with pytest.raises(ModelError, match=r"kernels\.so cannot be loaded: "):
        CompiledModel(tmp_path / LIBRARY, about(here))


class TestWriting:
    """Replacing the files of an earlier compilation."""

    @pytest.fixture
    def old(self, folder: Path, here: Target, tmp_path: Path) -> Path:
        place = tmp_path / "old"
        shutil.copytree(folder, place)
        (place / INT8).write_text("quantized")
        return place

    def test_a_new_library_replaces_all_old_files(self, old: Path, here: Target, tmp_path: Path) -> None:
        archive = tmp_path / "new.tar"
        archive.write_text("new")
        new = replace(about(here), device="another", file=ARCHIVE)
        write_library(old, LibraryFiles(archive), new)
        assert read_library(open_folder(old)) == new
        assert {path.name for path in old.iterdir()} == {ARCHIVE, MANIFEST}

    def test_an_int8_model_is_written_too(self, old: Path, here: Target, tmp_path: Path) -> None:
        (tmp_path / "other.so").write_text("new")
        (tmp_path / "other.onnx").write_text("smaller")
        write_library(old, LibraryFiles(tmp_path / "other.so", int8=tmp_path / "other.onnx"), about(here))
        assert (old / INT8).read_text() == "smaller"
