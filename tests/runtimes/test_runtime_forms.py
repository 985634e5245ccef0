"""The list of a model's forms, which may come from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onefold.agent.forms import Argument, Form
from onefold.runtimes.forms import copy_forms, form_of, forms_beside, read_forms, write_forms
from onefold.vocabulary.errors import ModelError

ARGUMENT = Argument("input0", "float32", (None, 4))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(b"model")
    for name in ("net.xml", "net.bin"):
        (tmp_path / name).write_text(name)
    form = Form("openvino", ("net.xml", "net.bin"), (ARGUMENT,), (ARGUMENT,))
    write_forms(tmp_path / "net.onnx", [form])
    return tmp_path / "net.onnx"


def test_forms_are_read_back_and_copied_under_another_name(model: Path, tmp_path: Path) -> None:
    form = form_of(model, "openvino")
    assert form is not None
    assert form.inputs == (ARGUMENT,)
    target = tmp_path / "deploy" / "model.onnx"
    target.parent.mkdir()
    target.write_bytes(model.read_bytes())
    copy_forms(model, target)
    assert read_forms(target)["openvino"].files == ("model.xml", "model.bin")
    assert (target.parent / "model.bin").read_text() == "net.bin"


def test_forms_of_a_model_that_was_replaced_do_not_count(model: Path) -> None:
    model.write_bytes(b"another model")
    assert read_forms(model) == {}
    with pytest.raises(ModelError, match="has no form for openvino; measure it with this runtime"):
        form_of(model, "openvino")


@pytest.mark.parametrize(
    "change",
    [
        {"files": ["../net.xml"]},
        {"files": ["other.xml"]},
        {"files": ["net./../../x"]},
        {"files": []},
        {"inputs": [{"name": "x", "dtype": "object", "shape": [1]}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [-1]}]},
        {"batch_size": True},
        {"runtime": None},
    ],
)
def test_lists_that_others_have_edited_are_refused(change: dict[str, Any], model: Path) -> None:
    content = json.loads(forms_beside(model).read_text())
    content["forms"][0] |= change
    forms_beside(model).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"net\.runtimes\.json cannot be read: .*; measure the model again"):
        read_forms(model)
