"""ONNX import and graph optimization: the same outputs at every level, and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from small_graphs import outputs_of, saved
from torch import nn

from onefold.kernels.graph import import_onnx, optimize_graph
from onefold.kernels.schedule_space import extract_operators
from onefold.kernels.targets import Target
from onefold.kernels.toolchain import tvm
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.kernels import GRAPH_LEVELS

Array = np.ndarray[Any, Any]


def answer(loops: Any, target: Target, *inputs: Array) -> Array:
    """Compile an untuned graph in this process and run it."""
    from tvm import relax

    machine = relax.VirtualMachine(tvm().compile(loops, target=target.tvm_target()), tvm().cpu())
    return np.asarray(machine["main"](*(tvm().runtime.tensor(array) for array in inputs)).numpy())


def names(loops: Any, target: Target) -> list[str]:
    """Return the names of its operators."""
    return [operator.name for operator, _ in extract_operators(loops, target)]


@pytest.fixture(scope="module")
def graph(tiny: Path) -> Any:
    return import_onnx(tiny)


@pytest.mark.parametrize("level", GRAPH_LEVELS)
def test_outputs_are_the_same_at_every_level(level: int, graph: Any, tiny: Path, sample: Array, here: Target) -> None:
    result = answer(optimize_graph(graph, here, level), here, sample)
    np.testing.assert_allclose(result, outputs_of(tiny, [sample])[0], rtol=1e-4, atol=1e-5)


def test_the_batch_size_is_fixed_on_import(tiny: Path, sample: Array, here: Target) -> None:
    three = np.concatenate([sample, sample + 1, sample - 1])
    result = answer(optimize_graph(import_onnx(tiny, 3), here), here, three)
    np.testing.assert_allclose(result, outputs_of(tiny, [three])[0], rtol=1e-4, atol=1e-5)


def test_operators_are_fused_from_level_1(graph: Any, here: Target) -> None:
    at = [names(optimize_graph(graph, here, level), here) for level in GRAPH_LEVELS]
    assert not any("fused" in name for name in at[0])
    assert all(any("conv2d_add_relu" in name for name in result) for result in at[1:])
    assert len(at[0]) > len(at[1]) >= len(at[2])


def test_level_3_converts_to_nhwc(graph: Any, here: Target) -> None:
    def shapes(level: int) -> tuple[str, ...]:
        return next(
            operator.shapes
            for operator, _ in extract_operators(optimize_graph(graph, here, level), here)
            if operator.kind == "conv2d"
        )

    assert shapes(2)[0] == "1x3x8x8"
    assert shapes(3)[0] == "1x8x8x3"


def test_attention_without_a_convolution_is_optimized(tmp_path: Path, here: Target) -> None:
    """TVM's layout conversion ended with std::bad_alloc."""
    torch.manual_seed(0)
    network = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    file = export(network, [torch.randn(2, 3, 8)], tmp_path / "attention.onnx")
    inputs = np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32)
    (right,) = outputs_of(file, [inputs])
    result = answer(optimize_graph(import_onnx(file), here, 3), here, inputs)
    np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


def test_transposed_convolutions_are_lowered(tmp_path: Path, here: Target) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2))
    file = export(network, [torch.randn(2, 3, 8, 8)], tmp_path / "transposed.onnx")
    inputs = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (right,) = outputs_of(file, [inputs])
    result = answer(optimize_graph(import_onnx(file), here, 3), here, inputs)
    np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


def test_relu6_is_fused_into_its_convolution(tmp_path: Path, here: Target) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6())
    with torch.no_grad():
        network[0].weight.mul_(10)  # so that some outputs are clipped
    file = export(network, [torch.randn(2, 3, 8, 8)], tmp_path / "six.onnx")
    inputs = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    loops = optimize_graph(import_onnx(file), here, 3)
    assert [name for name in names(loops, here) if "transpose" not in name] == ["fused_conv2d_add_maximum_minimum"]
    (right,) = outputs_of(file, [inputs])
    assert right.max() == 6.0
    np.testing.assert_allclose(answer(loops, here, inputs), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ends", [{"low": -0.5, "high": 0.5}, {"low": -0.5}, {"high": 0.5}])
def test_clip_works_with_one_or_two_bounds(ends: dict[str, float], tmp_path: Path, here: Target) -> None:
    node = helper.make_node("Clip", ["x", *(name if name in ends else "" for name in ("low", "high"))], ["y"])
    file = saved(tmp_path / "clip.onnx", [node], {"x": [1, 8]}, {"y": [1, 8]}, **ends)
    inputs = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    (right,) = outputs_of(file, [inputs])
    np.testing.assert_array_equal(answer(optimize_graph(import_onnx(file), here), here, inputs), right)


def test_the_converters_of_tvm_are_restored(tiny: Path) -> None:
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend.Clip.__dict__["_impl_v13"]
    import_onnx(tiny)
    assert onnx_frontend.Clip.__dict__["_impl_v13"] is theirs


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such model: .*none\.onnx; expected an ONNX file"):
        import_onnx(tmp_path / "none.onnx")


def test_a_file_that_is_not_onnx_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("a letter")
    with pytest.raises(ModelError, match=r"it is not an ONNX model: "):
        import_onnx(tmp_path / "text.onnx")


def test_an_unsupported_operator_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Det", ["x"], ["y"])
    file = saved(tmp_path / "det.onnx", [node], {"x": [1, 3, 3]}, {"y": [1]})
    with pytest.raises(ModelError, match=r"^TVM cannot import it: .* not supported .*: Det$"):
        import_onnx(file)


def test_nothing_is_printed_when_an_operator_cannot_be_converted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = helper.make_node("MaxRoiPool", ["x", "x"], ["y"], pooled_shape=[1, 1])
    file = saved(tmp_path / "pool.onnx", [node], {"x": [1, 3, 3]}, {"y": [1, 3]})
    with pytest.raises(ModelError, match="expects the input data to be 4-D") as raised:
        import_onnx(file)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("shape", [["N", 3, "H", 8], [1, "C"]])
def test_dynamic_dimensions_besides_the_batch_are_an_error(shape: list[int | str], tmp_path: Path) -> None:
    file = saved(tmp_path / "open.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})
    expected = re.escape(str([0 if isinstance(size, str) else size for size in shape]))
    with pytest.raises(ModelError, match=f"input 'x' has dynamic dimensions besides the batch: {expected}"):
        import_onnx(file)
