"""ONNX models with external data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onefold import deploy, measure
from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.kernels.source_models import load_models
from onefold.serving.export import export, samples_beside
from onefold.serving.external_data import with_embedded_weights
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.serving import ServingPoint


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return export(
        nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 3)), [torch.randn(8, 4)], tmp_path / "a.onnx"
    )


@pytest.fixture
def apart(plain: Path, tmp_path: Path) -> Path:
    """The same model with external data."""
    folder = tmp_path / "apart"
    folder.mkdir()
    file = folder / "b.onnx"
    onnx.save(onnx.load(plain), str(file), save_as_external_data=True, location="b.onnx.data", size_threshold=0)
    assert (folder / "b.onnx.data").stat().st_size > file.stat().st_size
    return file


def answers(file: Path) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(deploy.ServedModel(file, ServingPoint(4))(np.ones((4, 4), np.float32)))


def test_model_without_external_data_is_unchanged(plain: Path, tmp_path: Path) -> None:
    assert with_embedded_weights(plain, tmp_path / "nowhere") == plain


def test_external_data_is_embedded(plain: Path, apart: Path, tmp_path: Path) -> None:
    samples_beside(apart).write_bytes(samples_beside(plain).read_bytes())
    result = with_embedded_weights(apart, tmp_path)
    assert result.name == "b.onnx"
    assert samples_beside(result).read_bytes() == samples_beside(plain).read_bytes()
    expected = answers(apart)
    for file in apart.parent.iterdir():
        file.unlink()
    assert np.array_equal(answers(result), expected)


def test_compile_embeds_external_data(apart: Path, tmp_path: Path) -> None:
    expected = answers(apart)
    work_folder = tmp_path / "place"
    work_folder.mkdir()
    result = load_models([apart], None, work_folder, None)[0]
    assert result.name == "b"
    for file in apart.parent.iterdir():
        file.unlink()
    assert np.array_equal(answers(result.file), expected)


@pytest.mark.parametrize("name", ["b.onnx", "plain.onnx"])
def test_compress_embeds_external_data(name: str, apart: Path, tmp_path: Path) -> None:
    folder = tmp_path / "variants"
    folder.mkdir()
    builder = OnnxVariantBuilder(apart.rename(apart.with_name(name)), folder, None, lambda _: None)
    assert builder.provenance == {"file": name}
    assert (folder / "plain.onnx").stat().st_size > 300 * 4 * 4


def test_missing_external_data_is_an_error(apart: Path, tmp_path: Path) -> None:
    (apart.parent / "b.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"external data of .*b\.onnx cannot be embedded"):
        with_embedded_weights(apart, tmp_path)


def test_invalid_model_is_returned_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "c.onnx"
    file.write_bytes(b"no model")
    assert with_embedded_weights(file, tmp_path) == file


def test_external_data_that_claims_terabytes_is_refused_before_it_is_read(apart: Path, tmp_path: Path) -> None:
    model = onnx.load(str(apart), load_external_data=False)
    weights = model.graph.initializer[0]
    weights.dims[:] = [1 << 38]
    del weights.external_data[1:]  # without a length: the file from its beginning to its end
    onnx.save(model, str(apart))
    os.truncate(apart.parent / "b.onnx.data", 1 << 40)
    with pytest.raises(ModelError, match="larger than an ONNX file may be"):
        with_embedded_weights(apart, tmp_path)


def test_a_pipe_or_a_terabyte_is_no_model(plain: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="there is no model"):
        measure(tmp_path / "pipe.onnx", home=tmp_path)
    os.truncate(plain, 1 << 40)
    with pytest.raises(ModelError, match=r"1 TiB, but an ONNX file has at most 2 GiB"):
        measure(plain, home=tmp_path)
