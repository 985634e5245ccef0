"""Models that TVM compiles in part, and those that it cannot compile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_graphs import outputs_of, saved

from onefold.kernels.candidate_runner import CandidateRunner, MeasurementProcess
from onefold.kernels.compilable_part import find_compilable_part
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import LibraryManifest
from onefold.kernels.partition import split_model
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.source_models import SourceModel, load_models
from onefold.vocabulary.errors import ModelError

Array = np.ndarray[Any, Any]


def mixed(file: Path, size: int = 64) -> Path:
    """Save two matrix products, between which and after which there are operators that TVM does not support."""
    random = np.random.default_rng(0)
    weights = [helper.make_tensor(name, TensorProto.FLOAT, shape, random.standard_normal(shape).astype("f4"))
               for name, shape in (("few", (4, size)), ("many", (size, size)))]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "few"], ["small"]),
        helper.make_node("LpNormalization", ["small"], ["normal"], axis=1),
        helper.make_node("MatMul", ["normal", "many"], ["large"]),
        helper.make_node("Add", ["large", "small"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["y"], axis=1),
    ]
    x, y, total = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])
        for name, width in (("x", 4), ("y", size), ("sum", size))
    )
    graph = helper.make_graph(nodes, "mixed", [x], [y, total], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return file


def loaded(file: Path, folder: Path, batch_size: int = 1) -> SourceModel:
    (source,) = load_models([file], None, folder, None, batch_size)
    return source


def test_the_part_with_the_most_work_is_compiled(tmp_path: Path) -> None:
    file = mixed(tmp_path / "mixed.onnx")
    x = np.random.default_rng(1).standard_normal((2, 4)).astype("f4")
    parts = split_model(file, {"x": x}, ["LpNormalization"], tmp_path)
    kinds = [
        [node.op_type for node in onnx.load(str(part)).graph.node]
        for part in (parts.before, parts.compiled, parts.after)
        if part is not None
    ]
    assert kinds == [["MatMul", "LpNormalization"], ["MatMul", "Add"], ["LpNormalization"]]
    assert (parts.tensors.inputs, parts.tensors.made, parts.tensors.results) == (("x",), ("sum",), ("y", "sum"))
    assert set(parts.tensors.taken) == {"normal", "small"}
    shapes = [value.type.tensor_type.shape for value in onnx.load(str(parts.compiled)).graph.input]
    assert [[size.dim_value for size in shape.dim] for shape in shapes] == [[2, 64], [2, 64]]


@pytest.mark.parametrize("unsupported", [["MatMul"], ["MatMul", "Add", "LpNormalization"]])
def test_a_part_with_little_work_is_not_compiled(unsupported: list[str], tmp_path: Path) -> None:
    file = mixed(tmp_path / "mixed.onnx")
    with pytest.raises(ModelError, match=r"^the largest part that TVM can compile has \d% of the model's arithmetic$"):
        split_model(file, {"x": np.ones((1, 4), "f4")}, unsupported, tmp_path)


def test_what_depends_on_data_is_left_to_onnxruntime(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("NonZero", ["square"], ["at"]),
        helper.make_node("Cast", ["at"], ["y"], to=TensorProto.FLOAT),
    ]
    file = saved(tmp_path / "where.onnx", nodes, {"x": [2, 8]}, {"y": [2, "count"]})
    parts = split_model(file, {"x": np.eye(2, 8, dtype="f4")}, [], tmp_path)
    assert [node.op_type for node in onnx.load(str(parts.compiled)).graph.node] == ["Mul"]
    assert parts.before is None
    assert parts.after is not None


@pytest.mark.parametrize(
    ("shape", "kinds", "message"),
    [
        ([1, 4, 4], ["Relu", "Relu"], "no operator is known to be the reason"),
        ([1, "length", 4], ["Relu", "Det"], "input 'x' has dynamic dimensions besides the batch"),
        ([1, 4, 4], ["Relu", "NonZero"], "its outputs do not have the batch first"),
    ],
)
def test_models_that_cannot_be_split(shape: list[int | str], kinds: list[str], message: str, tmp_path: Path) -> None:
    nodes = [helper.make_node(kind, [source], [made]) for kind, source, made in zip(kinds, "xa", "ay")]
    nodes.append(helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT))
    file = saved(tmp_path / "model.onnx", nodes, {"x": shape}, {"z": []})
    with pytest.raises(ModelError, match=f"^{message}$"):
        split_model(file, {"x": np.ones((1, 4, 4), "f4")}, ["Det"], tmp_path)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_model_in_parts_has_the_outputs_of_the_whole(count: int, mixed_part: Any, tmp_path: Path) -> None:
    file, compiler, library = mixed_part
    manifest = LibraryManifest("host", "", 1, 2, {"x": "float32"}, (), "tvm", part=compiler.parts.tensors)
    served = CompiledModel(library, manifest, None, compiler.parts.before, compiler.parts.after)
    x = np.random.default_rng(count).standard_normal((count, 4)).astype("f4")
    for got, expected in zip(served(x), outputs_of(file, [x]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def mixed_part(runner: CandidateRunner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path]:
    """A model in parts with its compiler and its library, for a batch size of 2."""
    folder = tmp_path_factory.mktemp("mixed")
    source = loaded(mixed(folder / "mixed.onnx"), folder, 2)
    found = find_compilable_part(source, runner, 3, folder)
    assert found.compiler is not None
    assert "LpNormalization" in found.note
    assert found.compiler.parts is not None
    return source.file, found.compiler, folder / found.compiler.file_name({})


def test_the_whole_model_in_parts_is_timed(mixed_part: Any) -> None:
    _, compiler, library = mixed_part
    timed = compiler.time_library(library)
    assert timed.error < 1e-3
    assert [output.shape for output in compiler.reference] == [(2, 64), (2, 64)]


def test_nothing_that_tvm_supports_leaves_the_model_to_onnxruntime(runner: CandidateRunner, tmp_path: Path) -> None:
    file = saved(tmp_path / "det.onnx", [helper.make_node("Det", ["x"], ["y"])], {"x": [1, 3, 3]}, {"y": [1]})
    costs = PhaseCosts()
    found = find_compilable_part(loaded(file, tmp_path), runner, 3, tmp_path, costs)
    assert found.compiler is None
    assert found.note.startswith(f"TVM cannot compile {file}: TVM cannot import it: ")
    assert "Det" in found.note
    assert costs.total.seconds["whole"] > 0, "what failed has its cost"


def test_a_reason_is_given_once(runner: CandidateRunner, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    file = saved(tmp_path / "open.onnx", [node], {"x": [1, "n"]}, {"y": [1, "n"]})
    found = find_compilable_part(loaded(file, tmp_path), runner, 3, tmp_path)
    assert found.note.count("dynamic dimensions") == 1


def test_a_crash_at_one_graph_level_is_followed_by_the_next(
    runner: CandidateRunner, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = MeasurementProcess.ask

    def crash(process: MeasurementProcess, name: str, *arguments: Any, **limits: Any) -> Any:
        if name == "list_operators" and 3 in arguments:
            assert process.worker is not None
            os.kill(process.worker.pid, signal.SIGSEGV)
        return ask(process, name, *arguments, **limits)

    monkeypatch.setattr(MeasurementProcess, "ask", crash)
    found = find_compilable_part(loaded(tiny, tmp_path), runner, 3, tmp_path)
    assert found.compiler is not None
    assert found.compiler.level == 2
    assert found.note.startswith("graph level 2, since level 3 failed: the process was terminated by signal 11")
