"""A program that finds out what a board can do, and the board's answer as a device."""

from __future__ import annotations

import base64
import json
import math
import re
import tempfile
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.device.catalogue import HOST, check_name
from onefold.device.device import Device
from onefold.device.roofline import operator_costs
from onefold.vocabulary.errors import DeviceError

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 13, 7  # old enough for every ONNX Runtime that a board may have
_EMPTY = "MODELS: dict[str, dict[str, Any]] = {}\n"  # the line of the program that its models take the place of
_FIGURES = ("gflops", "bandwidth_gbps", "overhead_us", "cores", "memory_bytes")


def probe_source() -> str:
    """The text of a stand-alone program (numpy and onnxruntime) that writes what a board can do as JSON."""
    program = files("onefold.device").joinpath("probe_program.py").read_text(encoding="utf-8")
    lines = [f"    {json.dumps(name)}: {json.dumps(model)},  # noqa: E501" for name, model in probe_models().items()]
    filled = "\n".join([_EMPTY.replace("{}\n", "{"), *lines, "}", ""])
    return program.replace(_EMPTY, filled)


@cache
def probe_models() -> dict[str, dict[str, Any]]:
    """Tiny models by name, each packed, with the operations and bytes that it takes."""
    return {name: _packed(model) for name, model in _models().items()}


def device_from_probe(
    path: Path,
    name: str | None = None,
    *,
    idle_w: float | None = None,
    busy_w: float | None = None,
    like: Device | None = None,
) -> Device:
    """The device that wrote this JSON; its name is made of its title where none is given.

    Watts that the board could not tell come from the arguments, which win in any case, or from the device `like`.
    DeviceError when the file is not what the probe writes, or when watts are missing.
    """
    found = _read(path)
    title = str(found.get("title") or "")
    name = name or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-")
    check_name(name, str(path))
    if name == HOST:
        raise DeviceError(f"{path}: the name {HOST!r} is reserved for this machine; choose another with --name")
    idle, where_idle = _watts("idle_w", idle_w, found, like, path)
    busy, where_busy = _watts("busy_w", busy_w, found, like, path)
    if busy < idle:
        raise DeviceError(f"{path}: busy_w must be at least idle_w, but {busy:g} is below {idle:g}")
    frequency = found.get("frequency_ghz")
    return Device(
        name=name,
        title=title or name,
        cores=int(found["cores"]),
        gflops=float(found["gflops"]),
        bandwidth_gbps=float(found["bandwidth_gbps"]),
        memory_bytes=int(found["memory_bytes"]),
        idle_w=idle,
        busy_w=busy,
        architecture=str(found.get("architecture") or ""),
        frequency_ghz=float(frequency) if isinstance(frequency, (int, float)) and frequency > 0 else None,
        overhead_us=float(found["overhead_us"]),
        source="probe",
        note=f"compute, bandwidth and overhead measured on the device by the probe; idle power {where_idle}, "
        f"busy power {where_busy}",
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviceError(f"the probe's answer {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DeviceError(f"{path} is not the JSON that the probe writes: {error}") from error
    if not isinstance(found, dict) or found.get("onefold_probe") != 1:
        raise DeviceError(f"{path} is not what the probe writes; make it with: python probe.py > {path.name}")
    for field in _FIGURES:
        value: Any = found.get(field)
        least = 0 if field == "overhead_us" else 1e-9
        if not _is_number(value) or value < least:
            raise DeviceError(f"{path}: {field} must be a number above 0, but got {value!r}; run the probe again")
    return found


def _watts(
    field: str, given: float | None, found: Mapping[str, Any], like: Device | None, path: Path
) -> tuple[float, str]:
    """The watts and where they come from, in words."""
    if given is not None:
        if not _is_number(given) or given < 0:
            raise DeviceError(f"{field} must be a number of at least 0, but got {given!r}")
        return float(given), "given by the user"
    if _is_number(found.get(field)):
        return float(found[field]), f"measured ({found.get('power_source')})"
    if like is not None:
        return float(getattr(like, field)), f"of {like.name} ({like.source})"
    raise DeviceError(
        f"{path}: the board has no sensor for {field}; give it with --{field.replace('_', '-')}, "
        "or name a device of the catalogue that draws as much with --like"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _models() -> dict[str, onnx.ModelProto]:
    """One operator each, as networks have them, and two chains of tiny ones."""
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
        "chain1": _chain(1),
        "chain201": _chain(201),
    }


def _model(
    kind: str, shape: list[int], weights: list[list[int]], *, table_first: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """A model of one operator. All weights are alike: what they are does not matter, and alike ones pack well."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    names = [f"w{place}" for place in range(len(weights))]
    tensors = [numpy_helper.from_array(np.full(size, 0.01, np.float32), name) for size, name in zip(weights, names)]
    reads = [*names, "x"] if table_first else ["x", *names]
    data = TensorProto.INT64 if table_first else TensorProto.FLOAT
    node = helper.make_node(kind, reads, ["y"], name=kind, **attributes)
    return _finished([node], helper.make_tensor_value_info("x", data, shape), "y", tensors)


def _chain(length: int) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Add", [f"x{i}", f"x{i}"], [f"x{i + 1}"], name=f"Add{i}") for i in range(length)]
    return _finished(nodes, helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, 8]), f"x{length}", [])


def _finished(nodes: list[Any], takes: Any, gives: str, weights: list[Any]) -> onnx.ModelProto:
    from onnx import TensorProto, helper, shape_inference

    graph = helper.make_graph(
        nodes, "probe", [takes], [helper.make_tensor_value_info(gives, TensorProto.FLOAT, None)], weights
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="onefold"
    )
    model.graph.output[0].CopyFrom(shape_inference.infer_shapes(model).graph.output[0])
    return model


def _packed(model: onnx.ModelProto) -> dict[str, Any]:
    serialised = model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(serialised)
        counted = operator_costs(path, 1)
    return {
        "flops": sum(op.flops for op in counted),
        "moved_bytes": sum(op.moved_bytes for op in counted),
        "onnx": base64.b64encode(zlib.compress(serialised, 9)).decode(),
    }
