"""The probe program runs stand-alone, and its output makes a device."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from onefold.agent import probe_program
from onefold.device.catalog import device, read_devices, save_device
from onefold.device.probe import device_from_probe, probe_models, probe_source
from onefold.vocabulary.errors import DeviceError

ANSWER: dict[str, Any] = {
    "onefold_probe": 1,
    "title": "Raspberry Pi 4 Model B Rev 1.4",
    "architecture": "aarch64",
    "cores": 4,
    "memory_bytes": 4_000_000_000,
    "frequency_ghz": 1.8,
    "gflops": 8.0,
    "bandwidth_gbps": 4.5,
    "overhead_us": 1.5,
    "idle_w": 2.5,
    "busy_w": 6.5,
    "power_source": "sensor hwmon0/VDD_IN",
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "board.json"
    path.write_text(json.dumps(ANSWER | changes))
    return path


def test_program_runs_stand_alone_and_makes_a_device(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(probe_source())
    command = [sys.executable, "-I", "probe.py", "--seconds", "0.2"]  # -I: without onefold on the path
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    answer = json.loads(result.stdout)
    assert all(each["time_s"] > 0 for each in answer["operators"].values())
    assert set(answer["operators"]) >= {"matmul", "conv3x3", "depthwise", "lstm", "gather", "softmax"}
    assert answer["speed_by_threads"]["1"] == 1.0
    (tmp_path / "board.json").write_text(result.stdout)
    board = device_from_probe(tmp_path / "board.json", "my-board", idle_w=1.0, busy_w=99.0)
    assert board.source == "probe"
    assert board.cores == answer["cores"]
    assert min(board.gflops, board.bandwidth_gbps, board.overhead_us) > 0
    assert read_devices(save_device(board, tmp_path)) == [board]


def test_program_needs_only_numpy_and_onnxruntime_on_python_3_8() -> None:
    tree = ast.parse(probe_source(), feature_version=(3, 8))
    names = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names - set(sys.stdlib_module_names) == {"numpy", "onnxruntime"}


@pytest.mark.parametrize("name", probe_models())
def test_models_run_on_old_runtimes(name: str) -> None:
    model = onnx.load_from_string(probe_program.unpack(probe_models()[name]))
    assert model.ir_version <= 8
    assert [opset.version for opset in model.opset_import] == [13]
    onnx.checker.check_model(model)
    assert len(probe_models()[name]["onnx"]) < 10_000


def test_flops_of_the_models() -> None:
    assert probe_models()["matmul"]["flops"] == 2 * 384**3
    assert probe_models()["conv3x3"]["flops"] == 2 * 64 * 28 * 28 * 64 * 9


def test_operators_and_threads_become_figures_of_the_device(tmp_path: Path) -> None:
    product = {"time_s": 0.001 + 5e-6, "flops": 1e8, "moved_bytes": 1e6}
    relu = {"time_s": 0.0001 + 5e-6, "flops": 1e5, "moved_bytes": 1e6}
    figures = {"call_us": 5.0, "int8_gops": 300.0, "bandwidth_of_one_core_gbps": 4.0}
    tables = {"operators": {"matmul": product, "relu": relu}, "speed_by_threads": {"1": 1.0, "16": 9.0, "2": 1.8}}
    board = device_from_probe(written(tmp_path, **tables, **figures))
    assert dict(board.operator_rates) == pytest.approx({"matmul": 100.0, "relu": 10.0, "stream": 4.0})
    assert board.thread_speed == ((1, 1.0), (2, 1.8), (16, 9.0))
    assert (board.int8_gops, board.call_us) == (300.0, 5.0)


class TestDeviceFromProbe:
    def test_name_is_derived_from_the_title(self, tmp_path: Path) -> None:
        board = device_from_probe(written(tmp_path))
        assert board.name == "raspberry-pi-4-model-b-rev-1-4"
        assert (board.idle_w, board.busy_w) == (2.5, 6.5)
        assert "measured (sensor hwmon0/VDD_IN)" in board.note

    def test_missing_power_comes_from_arguments_or_another_device(self, tmp_path: Path) -> None:
        path = written(tmp_path, idle_w=None, busy_w=None)
        with pytest.raises(DeviceError, match="no power sensor; give idle_w"):
            device_from_probe(path)
        borrowed = device_from_probe(path, like=device("raspberry-pi-4"))
        assert (borrowed.idle_w, borrowed.busy_w) == (2.7, 6.4)
        assert "idle power of raspberry-pi-4 (catalog)" in borrowed.note
        given = device_from_probe(path, idle_w=1.0, busy_w=2.0, like=device("raspberry-pi-4"))
        assert (given.idle_w, given.busy_w) == (1.0, 2.0)
        assert "given by the user" in given.note

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"onefold_probe": None}, "was not written by the probe"),
            ({"gflops": None}, "gflops must be a number above 0, got None"),
            ({"int8_gops": "fast"}, "int8_gops must be a number above 0, got 'fast'"),
            ({"operators": {"matmul": {"time_s": 0.0}}}, "operators matmul time_s must be a number above 0, got 0.0"),
            ({"operators": {"matmul": []}}, r"operators matmul time_s must be a number above 0, got \[\]"),
            ({"operators": [1]}, "operators must be a number above 0"),
            ({"speed_by_threads": {"x": 1.0}}, "speed_by_threads x must be a number above 0, got 'x'"),
            ({"cores": 0}, "cores must be a number above 0"),
            ({"busy_w": 1.0}, "busy_w must be at least idle_w"),
            ({"title": ""}, "a name has lowercase letters"),
            ({"title": "Host"}, "the name 'host' is reserved"),
        ],
    )
    def test_invalid_output_is_refused(self, tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
        with pytest.raises(DeviceError, match=complaint):
            device_from_probe(written(tmp_path, **changes))

    def test_unreadable_output_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "board.json").write_text("Traceback …")
        with pytest.raises(DeviceError, match="is not JSON written by the probe"):
            device_from_probe(tmp_path / "board.json")
        with pytest.raises(DeviceError, match="cannot be read"):
            device_from_probe(tmp_path / "none.json")


def sensor(root: Path, path: str, value: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{value}\n")


class TestPower:
    """Power sensors in a simulated /sys."""

    def test_unknown_without_sensors(self, tmp_path: Path) -> None:
        assert probe_program.power_w(lambda: None, tmp_path) is None

    def test_rapl_counters(self, tmp_path: Path) -> None:
        zone = "class/powercap/intel-rapl:0"
        sensor(tmp_path, f"{zone}/name", "package-0")
        sensor(tmp_path, f"{zone}/max_energy_range_uj", 10_000_000)
        sensor(tmp_path, f"{zone}/energy_uj", 9_000_000)
        sensor(tmp_path, "class/powercap/intel-rapl:1/name", "psys")
        sensor(tmp_path, "class/powercap/intel-rapl:1/energy_uj", 0)

        def work() -> None:
            time.sleep(0.05)
            sensor(tmp_path, f"{zone}/energy_uj", 1_000_000)  # two joules later, after the counter wrapped

        result = probe_program.power_w(work, tmp_path)
        assert result is not None
        watts, source = result
        assert source.startswith("rapl")
        assert 0 < watts <= 2 / 0.05

    def test_jetson_input_rail_is_preferred(self, tmp_path: Path) -> None:
        for index, (rail, milliwatts) in enumerate([("POM_5V_GPU", 9000), ("POM_5V_IN", 5000), ("POM_5V_CPU", 2000)]):
            folder = "bus/i2c/drivers/ina3221x/6-0040/iio:device0"
            sensor(tmp_path, f"{folder}/rail_name_{index}", rail)
            sensor(tmp_path, f"{folder}/in_power{index}_input", milliwatts)
        assert probe_program.power_w(lambda: None, tmp_path) == (5.0, "sensor iio:device0/POM_5V_IN")

    def test_power_is_voltage_times_current(self, tmp_path: Path) -> None:
        for name, value in {"in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 1200}.items():
            sensor(tmp_path, f"class/hwmon/hwmon3/{name}", value)
        assert probe_program.power_w(lambda: None, tmp_path) == (6.0, "sensor hwmon3/VDD_IN")

    def test_largest_rail_without_an_input_rail(self, tmp_path: Path) -> None:
        sensor(tmp_path, "class/hwmon/hwmon0/power1_input", 3_000_000)
        sensor(tmp_path, "class/hwmon/hwmon0/power2_input", 4_500_000)
        assert probe_program.power_w(lambda: None, tmp_path) == (4.5, "sensor hwmon0/power2_input")
