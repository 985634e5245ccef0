"""Operator costs of models, and scaling of latencies between devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Attention, Recurrent, Words, exported, pictures

from onefold.device.catalog import devices
from onefold.device.device import Device
from onefold.device.operator_costs import OperatorCost
from onefold.device.roofline import latency_ratio, operator_costs, operator_time_s, thread_speed, uncounted_kinds
from onefold.vocabulary.errors import DeviceError, ModelError

HOST = Device("host", "", 2, 100.0, 20.0, 10**10, 0.0, 12.0, overhead_us=0.3)
untimed = settings(deadline=None, max_examples=50)  # machines that run tests are busy
BATCH = 5


def by_kind(ops: tuple[OperatorCost, ...], kind: str) -> list[OperatorCost]:
    return [op for op in ops if op.kind == kind]


def bytes_of(*shapes: tuple[int, ...]) -> float:
    return 4.0 * sum(int(np.prod(shape)) for shape in shapes)


def with_open_dimensions(model: Path, path: Path) -> Path:
    """Write a model whose inputs have no fixed dimension but that of channels."""
    loaded = onnx.load(str(model))
    for value in loaded.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis in [0, *range(1 if len(dims) == 2 else 2, len(dims))]:
            dims[axis].dim_param = f"open_{axis}"
    del loaded.graph.value_info[:]
    onnx.save(loaded, str(path))
    return path


class TestOperatorCosts:
    def test_convolutional_network(self, tmp_path: Path) -> None:
        ops = operator_costs(exported(pictures(), torch.zeros(1, 3, 32, 32), tmp_path / "m.onnx"), BATCH)
        assert uncounted_kinds(ops) == ()
        first, second = by_kind(ops, "Conv")
        assert first.flops == BATCH * 8 * 32 * 32 * (2 * 3 * 9 + 1)
        assert first.moved_bytes == bytes_of((BATCH, 3, 32, 32), (8, 3, 3, 3), (8,), (BATCH, 8, 32, 32))
        assert second.flops == BATCH * 16 * 7 * 7 * 2 * 4 * 9  # two groups see four channels each
        assert by_kind(ops, "MaxPool")[0].flops == BATCH * 8 * 16 * 16 * 4
        assert by_kind(ops, "Relu")[0].flops == BATCH * 8 * 32 * 32
        assert by_kind(ops, "Sigmoid")[0].flops == 10 * BATCH * 16 * 7 * 7
        assert by_kind(ops, "Flatten")[0].moved_bytes == 0
        assert by_kind(ops, "Gemm")[0].flops == BATCH * 10 * (2 * 16 * 7 * 7 + 1)

    def test_normalization_that_is_not_folded(self, tmp_path: Path) -> None:
        network = pictures()
        network[1].eval()
        ops = operator_costs(exported(network, torch.zeros(2, 3, 32, 32), tmp_path / "m.onnx", fold=False), BATCH)
        assert by_kind(ops, "BatchNormalization")[0].flops == 2 * BATCH * 8 * 32 * 32

    @pytest.mark.parametrize(("kind", "gates", "others"), [("LSTM", 4, 54), ("GRU", 3, 35), ("RNN", 1, 10)])
    @pytest.mark.parametrize("directions", [1, 2])
    def test_recurrent_network(self, tmp_path: Path, kind: str, gates: int, others: int, directions: int) -> None:
        network = Recurrent(kind, bidirectional=directions == 2)
        ops = operator_costs(exported(network, torch.zeros(1, 20, 12), tmp_path / "m.onnx"), BATCH)
        assert uncounted_kinds(ops) == ()
        hidden, width, steps = 16, 12, 20
        each = gates * hidden * (2 * (width + hidden) + 1) + others * hidden
        assert by_kind(ops, kind)[0].flops == directions * steps * BATCH * each

    def test_embedding(self, tmp_path: Path) -> None:
        ops = operator_costs(exported(Words(), torch.zeros(1, 20, dtype=torch.long), tmp_path / "m.onnx"), BATCH)
        assert uncounted_kinds(ops) == ()
        table = by_kind(ops, "Gather")[0]
        assert table.flops == 0
        assert table.moved_bytes == 2 * bytes_of((BATCH, 20, 16)) + 8 * BATCH * 20  # not the whole table
        assert by_kind(ops, "Conv")[0].flops == BATCH * 8 * 18 * (2 * 16 * 3 + 1)
        assert by_kind(ops, "ReduceMax")[0].flops == BATCH * 8 * 18
        assert by_kind(ops, "Transpose")[0].moved_bytes == 2 * bytes_of((BATCH, 20, 16))

    def test_attention_with_computed_shapes(self, tmp_path: Path) -> None:
        ops = operator_costs(exported(Attention(), torch.zeros(1, 10, 16), tmp_path / "m.onnx"), BATCH)
        assert uncounted_kinds(ops) == ()
        products = by_kind(ops, "MatMul") + by_kind(ops, "Gemm")
        each = 2 * 10 * 16 * (3 * 16 + 16 + 2 * 32) + 2 * 2 * 2 * 10 * 10 * 8  # projections and layers; two heads
        biases = sum(10 * width for width in (48, 16, 32, 16))
        assert sum(op.flops for op in products) == pytest.approx(BATCH * each, abs=BATCH * biases)
        assert by_kind(ops, "Softmax")[0].flops == 13 * BATCH * 2 * 10 * 10

    def test_costs_scale_with_the_batch_except_for_weights(self, tmp_path: Path) -> None:
        path = exported(pictures(), torch.zeros(1, 3, 32, 32), tmp_path / "m.onnx")
        one, eight = operator_costs(path, 1), operator_costs(path, 8)
        assert sum(op.flops for op in eight) == 8 * sum(op.flops for op in one)
        assert sum(op.moved_bytes for op in eight) < 8 * sum(op.moved_bytes for op in one)

    @pytest.mark.parametrize(
        ("network", "sample"),
        [(Words(), torch.zeros(1, 20, dtype=torch.long)), (pictures()[:4], torch.zeros(1, 3, 32, 32))],
        ids=["text", "pictures"],
    )
    def test_open_dimensions_are_those_of_the_samples(
        self, tmp_path: Path, network: torch.nn.Module, sample: torch.Tensor
    ) -> None:
        path = exported(network, sample, tmp_path / "m.onnx")
        opened = with_open_dimensions(path, tmp_path / "open.onnx")
        (name,) = (value.name for value in onnx.load(str(path)).graph.input)
        fixed = operator_costs(path, BATCH)
        costs = operator_costs(opened, BATCH, {name: tuple(sample.shape)})
        assert [cost.flops for cost in costs] == [cost.flops for cost in fixed]
        assert [cost.moved_bytes for cost in costs] == [cost.moved_bytes for cost in fixed]

    def test_transposed_convolution(self, tmp_path: Path) -> None:
        network = torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 6, 2, stride=2))
        ops = operator_costs(exported(network, torch.zeros(1, 4, 5, 5), tmp_path / "m.onnx"), BATCH)
        assert ops[0].flops == BATCH * (2 * 4 * 25 * 6 * 4 + 6 * 10 * 10)

    def test_unknown_kind_counts_bytes_only(self, tmp_path: Path) -> None:
        node = onnx.helper.make_node("Mystery", ["x"], ["y"], domain="some.where")
        x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "xy")
        graph = onnx.helper.make_graph([node], "g", [x], [y])
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("some.where", 1)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
        (op,) = operator_costs(tmp_path / "m.onnx", BATCH)
        assert op.unknown
        assert (op.flops, op.moved_bytes) == (0.0, bytes_of((BATCH, 4)))
        assert uncounted_kinds([op]) == ("Mystery",)

    def test_invalid_model_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(b"not a model")
        with pytest.raises(ModelError, match="cannot be read as an ONNX model"):
            operator_costs(tmp_path / "m.onnx", 1)
        with pytest.raises(ModelError, match="there is no model"):
            operator_costs(tmp_path / "none.onnx", 1)


figures = st.floats(min_value=1e-2, max_value=1e4)
machines = st.builds(
    lambda cores, gflops, bandwidth, overhead: replace(
        HOST, cores=cores, gflops=gflops, bandwidth_gbps=bandwidth, overhead_us=overhead
    ),
    st.integers(1, 16),
    figures,
    figures,
    figures,
)
amounts = st.floats(min_value=0, max_value=1e12)
one_operator = st.builds(lambda flops, moved: OperatorCost("a", "Conv", flops, moved), amounts, amounts)
models = st.lists(one_operator, min_size=1, max_size=6).map(
    lambda ops: tuple(replace(op, name=f"n{index}") for index, op in enumerate(ops))
)
some_threads = st.integers(1, 16)


def faster(device: Device, times: float) -> Device:
    return replace(
        device,
        gflops=device.gflops * times,
        bandwidth_gbps=device.bandwidth_gbps * times,
        overhead_us=device.overhead_us / times,
    )


class TestLatencyRatio:
    def test_operator_time_is_bound_by_compute_or_bandwidth(self) -> None:
        device = replace(HOST, overhead_us=2.0)
        assert operator_time_s(OperatorCost("a", "Conv", 100e9, 1.0), device, 1) == pytest.approx(1.0 + 2e-6)
        assert operator_time_s(OperatorCost("a", "Conv", 100e9, 1.0), device, 2) == pytest.approx(0.5 + 2e-6)
        assert operator_time_s(OperatorCost("a", "Conv", 100e9, 1.0), device, 9) == pytest.approx(0.5 + 2e-6)
        assert operator_time_s(OperatorCost("a", "Add", 1.0, 20e9), device, 1) == pytest.approx(1.0 + 2e-6)
        assert operator_time_s(OperatorCost("a", "Add", 1.0, 20e9), device, 2) == pytest.approx(1.0 + 2e-6)

    @untimed
    @given(models, machines, some_threads)
    def test_same_device_has_ratio_one(self, ops: tuple[OperatorCost, ...], host: Device, threads: int) -> None:
        assert latency_ratio(ops, host, host, threads) == pytest.approx(1.0)

    @untimed
    @given(models, machines, machines, some_threads, st.floats(0.1, 10))
    def test_ratio_is_inverse_to_speed(
        self, ops: tuple[OperatorCost, ...], host: Device, target: Device, threads: int, times: float
    ) -> None:
        before, after = (latency_ratio(ops, host, each, threads) for each in (target, faster(target, times)))
        assert after == pytest.approx(before / times)

    @untimed
    @given(ops=models, host=machines, target=machines, threads=some_threads, times=st.floats(1, 10))
    @pytest.mark.parametrize(
        "better",
        [
            lambda device, times: replace(device, gflops=device.gflops * times),
            lambda device, times: replace(device, bandwidth_gbps=device.bandwidth_gbps * times),
            lambda device, times: replace(device, overhead_us=device.overhead_us / times),
            lambda device, times: replace(device, cores=device.cores + int(times)),
        ],
        ids=["compute", "bandwidth", "overhead", "cores"],
    )
    def test_better_figures_are_never_slower(
        self,
        ops: tuple[OperatorCost, ...],
        host: Device,
        target: Device,
        threads: int,
        times: float,
        better: Callable[[Device, float], Device],
    ) -> None:
        before, after = (latency_ratio(ops, host, each, threads) for each in (target, better(target, times)))
        assert after <= before * (1 + 1e-9)

    @untimed
    @given(models, machines, machines, some_threads)
    def test_inverse_ratios_cancel(
        self, ops: tuple[OperatorCost, ...], host: Device, target: Device, threads: int
    ) -> None:
        there, back = latency_ratio(ops, host, target, threads), latency_ratio(ops, target, host, threads)
        assert there * back == pytest.approx(1.0)

    def test_model_without_operators_has_no_ratio(self) -> None:
        with pytest.raises(DeviceError, match="has no operators"):
            latency_ratio((), HOST, HOST, 1)


def test_catalog_devices_are_ordered_by_speed(tmp_path: Path) -> None:
    ops = operator_costs(exported(pictures(), torch.zeros(1, 3, 32, 32), tmp_path / "m.onnx"), 1)
    factors = {name: latency_ratio(ops, HOST, target, 1) for name, target in devices().items()}
    assert factors["raspberry-pi-3b-plus"] > factors["raspberry-pi-4"] > factors["raspberry-pi-5"] > 1


RATES = (("matmul", 100.0), ("depthwise", 10.0), ("add", 40.0), ("matmul-int8", 400.0), ("stream", 10.0))


class TestMeasuredRates:
    """Devices on which the probe measured single operators."""

    PROBED = replace(HOST, operator_rates=RATES, overhead_us=0.0)

    def test_groups_have_their_own_speed(self) -> None:
        product, depthwise = (OperatorCost("a", "Conv", 1e9, 1.0, group=group) for group in ("matmul", "depthwise"))
        assert operator_time_s(product, self.PROBED, 1) == pytest.approx(0.01)
        assert operator_time_s(depthwise, self.PROBED, 1) == pytest.approx(0.1)

    def test_large_tensors_are_bound_by_memory_and_small_ones_by_caches(self) -> None:
        times = [
            operator_time_s(OperatorCost("a", "Add", 0.0, size, group="add"), self.PROBED, 1) for size in (1e6, 1e9)
        ]
        assert times == pytest.approx([1e6 / 40e9, 1e9 / 10e9])

    def test_int8_has_its_own_throughput(self) -> None:
        operator = OperatorCost("a", "QLinearConv", 1e9, 1.0, group="matmul-int8")
        assert operator_time_s(operator, self.PROBED, 1) == pytest.approx(1 / 400)
        guessed = replace(self.PROBED, operator_rates=RATES[:3], int8_gops=2 * HOST.gflops)
        assert operator_time_s(operator, guessed, 1) == pytest.approx(1 / 200)
        assert operator_time_s(operator, replace(HOST, overhead_us=0.0, int8_gops=500.0), 1) == pytest.approx(1 / 500)

    def test_a_figure_of_one_device_alone_is_not_used(self) -> None:
        costs = (OperatorCost("a", "Conv", 1e9, 1.0, group="depthwise"),)
        target = replace(HOST, name="board", gflops=50.0)
        assert latency_ratio(costs, replace(self.PROBED, overhead_us=0.3), target, 1) == pytest.approx(2.0, rel=1e-3)

    def test_operators_too_small_for_threads_run_on_one(self) -> None:
        threaded = replace(self.PROBED, thread_speed=((1, 1.0), (2, 1.5)))
        small, large = (OperatorCost("a", "MatMul", flops, 1.0, group="matmul") for flops in (1e6, 1e10))
        assert operator_time_s(small, threaded, 2) == operator_time_s(small, threaded, 1)
        assert operator_time_s(large, threaded, 2) == pytest.approx(operator_time_s(large, threaded, 1) / 2, rel=0.01)
        assert thread_speed(replace(threaded, cores=8, thread_speed=((1, 1.0), (2, 1.5), (4, 2.5))), 3) == 2.0


def test_networks_that_are_quantized_have_int8_operators(tmp_path: Path) -> None:
    """Operators between a dequantization and a quantization run as int8, since the runtime fuses the three."""
    from onnx import TensorProto, helper, numpy_helper

    constants = {"scale": np.float32(0.1), "zero": np.uint8(0), "w": np.ones((4, 4), np.float32)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 4]) for name in ("x", "z")]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], weights)
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    assert [op.group for op in by_kind(operator_costs(tmp_path / "m.onnx", 8), "MatMul")] == ["matmul-int8", "matmul"]


def test_recurrent_layers_of_one_sample_do_not_gain_from_threads(tmp_path: Path) -> None:
    model = exported(Recurrent("LSTM"), torch.zeros(2, 7, 12), tmp_path / "m.onnx")
    alone, batch = (by_kind(operator_costs(model, size), "LSTM")[0] for size in (1, 8))
    assert operator_time_s(alone, HOST, 2) == operator_time_s(alone, HOST, 1)
    assert operator_time_s(batch, HOST, 2) < operator_time_s(batch, HOST, 1)


def test_the_frequency_acts(tmp_path: Path) -> None:
    ops = operator_costs(exported(pictures(), torch.zeros(1, 3, 32, 32), tmp_path / "m.onnx"), 1)
    pi = devices()["raspberry-pi-4"]
    slow = pi.at_frequency(0.75)
    assert 1.5 < latency_ratio(ops, pi, slow, 1) < 2.0  # memory does not follow the clock
    assert slow.bandwidth_gbps == pi.bandwidth_gbps
    assert pi.idle_w < slow.busy_w < pi.busy_w
    assert slow.digest != pi.digest
