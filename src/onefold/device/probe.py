"""A stand-alone program that benchmarks a board, and its result as a device."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.device.catalog import HOST, check_name
from onefold.device.device import Device
from onefold.device.operator_groups import COMPUTE_GROUPS, STREAM, without_int8
from onefold.device.roofline import operator_costs
from onefold.processes import scratch_folder
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import DeviceError

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 13, 7  # old enough for any ONNX Runtime that a board may have
_PLACEHOLDER = "MODELS: dict[str, dict[str, Any]] = {}\n"  # the line of the program that the models replace
_LATER_FIGURES = ("int8_gops", "call_us", "bandwidth_of_one_core_gbps")
_FIGURES = ("gflops", "bandwidth_gbps", "overhead_us", "cores", "memory_bytes")


def probe_source() -> str:
    """Return the source of a program that benchmarks a board with numpy and onnxruntime and prints JSON."""
    program = files("onefold.agent").joinpath("probe_program.py").read_text(encoding="utf-8")
    lines = [f"    {json.dumps(name)}: {json.dumps(model)},  # noqa: E501" for name, model in probe_models().items()]
    filled = "\n".join([_PLACEHOLDER.replace("{}\n", "{"), *lines, "}", ""])
    return program.replace(_PLACEHOLDER, filled)


@cache
def probe_models() -> dict[str, dict[str, Any]]:
    """Return the benchmark models by name, each compressed, with its FLOPs and memory traffic."""
    return {name: _pack(model) for name, model in _models().items()}


def device_from_probe(
    path: Path,
    name: str | None = None,
    *,
    idle_w: float | None = None,
    busy_w: float | None = None,
    like: Device | None = None,
) -> Device:
    """Return the device described by the JSON output of the probe.

    Args:
        path: The output of the probe.
        name: The name of the device; derived from its title by default.
        idle_w: Power of the idle board; overrides what the board measured.
        busy_w: Power with all cores busy; overrides what the board measured.
        like: A device whose power is assumed if the board has no sensor and no argument gives it.

    Raises:
        DeviceError: The file is not an output of the probe, or the power is unknown.
    """
    return device_from_answer(_read(path), str(path), name, idle_w=idle_w, busy_w=busy_w, like=like)


def device_from_answer(
    answer: object,
    where: str,
    name: str | None = None,
    *,
    idle_w: float | None = None,
    busy_w: float | None = None,
    like: Device | None = None,
) -> Device:
    """Return the device described by what the probe answered; messages call its origin `where`."""
    answer = _checked(answer, where)
    title = str(answer.get("title") or "")
    name = name or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-")
    check_name(name, where)
    if name == HOST:
        raise DeviceError(f"{where}: the name {HOST!r} is reserved for this machine; choose another name")
    idle, idle_source = _watts("idle_w", idle_w, answer, like, where)
    busy, busy_source = _watts("busy_w", busy_w, answer, like, where)
    if busy < idle:
        raise DeviceError(f"{where}: busy_w must be at least idle_w, but {busy:g} is below {idle:g}")
    frequency = answer.get("frequency_ghz")
    return Device(
        name=name,
        title=title or name,
        cores=int(answer["cores"]),
        gflops=float(answer["gflops"]),
        bandwidth_gbps=float(answer["bandwidth_gbps"]),
        memory_bytes=int(answer["memory_bytes"]),
        idle_w=idle,
        busy_w=busy,
        architecture=str(answer.get("architecture") or ""),
        frequency_ghz=float(frequency) if isinstance(frequency, (int, float)) and frequency > 0 else None,
        overhead_us=float(answer["overhead_us"]),
        **operator_figures(answer),
        source="probe",
        note=f"compute, bandwidth and overhead measured on the device by the probe; idle power {idle_source}, "
        f"busy power {busy_source}",
    )


def operator_figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a device that follow from the operators and threads that the probe measured.

    A probe of an older version measured fewer of them.
    """
    measured: dict[str, dict[str, float]] = answer.get("operators") or {}
    # The gather of the probe takes hardly longer than a call.
    call_us = float(answer.get("call_us") or measured.get("gather", {}).get("time_s", 0.0) * 1e6)
    rates = {name: _rate_of(name, operator, call_us) for name, operator in measured.items() if name != "gather"}
    if "bandwidth_of_one_core_gbps" in answer:
        rates[STREAM] = float(answer["bandwidth_of_one_core_gbps"])
    speeds = {int(threads): float(speed) for threads, speed in (answer.get("speed_by_threads") or {}).items()}
    return {
        "call_us": call_us,
        "int8_gops": float(answer["int8_gops"]) if "int8_gops" in answer else None,
        "operator_rates": tuple(rates.items()),
        "thread_speed": tuple(sorted(speeds.items())),
    }


def _rate_of(name: str, operator: Mapping[str, float], call_us: float) -> float:
    """Return the 10^9 operations or bytes per second of an operator, without the time of the call."""
    work = operator["flops"] if without_int8(name) in COMPUTE_GROUPS else operator["moved_bytes"]
    return work / max(operator["time_s"] - call_us * 1e-6, operator["time_s"] / 10) / 1e9


def _read(path: Path) -> object:
    try:
        return read_json(path)
    except OSError as error:
        raise DeviceError(f"the output of the probe {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DeviceError(f"{path} is not JSON written by the probe: {error}") from error


def _checked(answer: object, where: str) -> Mapping[str, Any]:
    if not isinstance(answer, dict) or answer.get("onefold_probe") != 1:
        raise DeviceError(f"{where} was not written by the probe; create it with: python probe.py > {Path(where).name}")
    for field in _FIGURES:
        value: Any = answer.get(field)
        least = 0 if field == "overhead_us" else 1e-9
        if not _is_number(value) or value < least:
            raise DeviceError(f"{where}: {field} must be a number above 0, got {value!r}; run the probe again")
    for field, value in _optional_figures(answer):
        if not _is_number(value) or value <= 0:
            raise DeviceError(f"{where}: {field} must be a number above 0, got {value!r}; run the probe again")
    return answer


def _optional_figures(answer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the figures that earlier versions of the probe did not measure, by name."""
    yield from ((field, answer[field]) for field in _LATER_FIGURES if field in answer)
    for table in ("operators", "speed_by_threads"):
        rows = answer.get(table, {})
        if not isinstance(rows, dict):
            yield table, rows
            continue
        for name, row in rows.items():
            if table == "speed_by_threads":
                yield f"{table} {name}", row if name.isdecimal() else name
                continue
            for figure in ("time_s", "moved_bytes"):
                yield f"{table} {name} {figure}", row.get(figure) if isinstance(row, dict) else row
            if without_int8(name) in COMPUTE_GROUPS:
                yield f"{table} {name} flops", row.get("flops")


def _watts(
    field: str, override: float | None, answer: Mapping[str, Any], like: Device | None, where: str
) -> tuple[float, str]:
    """Return the watts and a description of their source."""
    if override is not None:
        if not _is_number(override) or override < 0:
            raise DeviceError(f"{field} must be a number of at least 0, got {override!r}")
        return float(override), "given by the user"
    if _is_number(answer.get(field)):
        return float(answer[field]), f"measured ({answer.get('power_source')})"
    if like is not None:
        return float(getattr(like, field)), f"of {like.name} ({like.source})"
    raise DeviceError(
        f"{where}: the board has no power sensor; give {field}, or with `like` a device of the catalog that draws as "
        "much power"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _models() -> dict[str, onnx.ModelProto]:
    """Return models of one typical operator each, and two chains of tiny operators."""
    return {
        "matmul": _model("MatMul", [384, 384], [[384, 384]]),
        "conv3x3": _model("Conv", [1, 64, 28, 28], [[64, 64, 3, 3]], pads=[1, 1, 1, 1]),
        "conv1x1": _model("Conv", [1, 128, 28, 28], [[128, 128, 1, 1]]),
        "depthwise": _model("Conv", [1, 128, 28, 28], [[128, 1, 3, 3]], pads=[1, 1, 1, 1], group=128),
        "gemm": _model("Gemm", [1, 512], [[512, 512], [512]]),
        "lstm": _model("LSTM", [16, 1, 64], [[1, 256, 64], [1, 256, 64]], hidden_size=64),
        "gather": _model("Gather", [64], [[2000, 64]], table_first=True),
        "relu": _model("Relu", [1, 64, 56, 56], []),
        "add": _model("Add", [1, 64, 56, 56], [[1, 64, 56, 56]]),
        "maxpool": _model("MaxPool", [1, 64, 56, 56], [], kernel_shape=[2, 2], strides=[2, 2]),
        "softmax": _model("Softmax", [64, 1000], [], axis=-1),
        "matmul-int8": _int8_product([384, 384], [384, 384]),
        "gemm-int8": _int8_product([1, 512], [512, 512]),
        "conv3x3-int8": _int8_convolution([1, 64, 28, 28], [64, 64, 3, 3], pads=[1, 1, 1, 1]),
        "conv1x1-int8": _int8_convolution([1, 128, 28, 28], [128, 128, 1, 1]),
        "depthwise-int8": _int8_convolution([1, 128, 28, 28], [128, 1, 3, 3], pads=[1, 1, 1, 1], group=128),
        "chain1": _chain(1),
        "chain201": _chain(201),
    }


def _model(
    kind: str, shape: list[int], weights: list[list[int]], *, table_first: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one operator. Its weights are constant, which compresses well; the values do not matter."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    names = [f"w{index}" for index in range(len(weights))]
    tensors = [numpy_helper.from_array(np.full(size, 0.01, np.float32), name) for size, name in zip(weights, names)]
    inputs = [*names, "x"] if table_first else ["x", *names]
    dtype = TensorProto.INT64 if table_first else TensorProto.FLOAT
    node = helper.make_node(kind, inputs, ["y"], name=kind, **attributes)
    return _onnx_model([node], helper.make_tensor_value_info("x", dtype, shape), "y", tensors)


def _int8_product(shape: list[int], weights: list[int]) -> onnx.ModelProto:
    return _int8_model("MatMulInteger", ["x", "w", "zero"], shape, weights)


def _int8_convolution(shape: list[int], weights: list[int], **attributes: Any) -> onnx.ModelProto:
    inputs = ["x", "scale", "zero", "w", "scale", "weight_zero", "scale", "zero"]
    return _int8_model("QLinearConv", inputs, shape, weights, **attributes)


def _int8_model(
    kind: str, inputs: list[str], shape: list[int], weights: list[int], **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one operator with uint8 activations and int8 weights, as quantized networks have them."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants: dict[str, Any] = {
        "w": np.ones(weights, np.int8), "scale": np.array(0.01, np.float32), "zero": np.array(0, np.uint8),
        "weight_zero": np.array(0, np.int8),
    }  # fmt: skip
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in inputs]
    node = helper.make_node(kind, inputs, ["y"], name=kind, **attributes)
    dtype = TensorProto.INT32 if kind == "MatMulInteger" else TensorProto.UINT8
    return _onnx_model([node], helper.make_tensor_value_info("x", TensorProto.UINT8, shape), "y", tensors, dtype)


def _chain(length: int) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Add", [f"x{i}", f"x{i}"], [f"x{i + 1}"], name=f"Add{i}") for i in range(length)]
    return _onnx_model(nodes, helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, 8]), f"x{length}", [])


def _onnx_model(
    nodes: list[Any], model_input: Any, output: str, weights: list[Any], dtype: int | None = None
) -> onnx.ModelProto:
    from onnx import TensorProto, helper, shape_inference

    described = helper.make_tensor_value_info(output, dtype or TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "probe", [model_input], [described], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="onefold"
    )
    model.graph.output[0].CopyFrom(shape_inference.infer_shapes(model).graph.output[0])
    return model


def _pack(model: onnx.ModelProto) -> dict[str, Any]:
    serialized = model.SerializeToString()
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        path.write_bytes(serialized)
        costs = operator_costs(path, 1)
    return {
        "flops": sum(cost.flops for cost in costs),
        "moved_bytes": sum(cost.moved_bytes for cost in costs),
        "onnx": base64.b64encode(zlib.compress(serialized, 9)).decode(),
    }
