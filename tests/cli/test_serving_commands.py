"""The commands `devices`, `measure`, `serve-check` and `tune --device`."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import onnx
import pytest
from shell import WORKLOAD, onefold

from misbehaving_models import endless
from onefold import ServingSpace, deploy, measure, serve_check
from onefold.device import Device
from onefold.device.catalog import devices, read_devices, save_device
from onefold.serving.api import PointMeasured
from onefold.serving.options import ServingOptions
from onefold.study import Home
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import Disturbance, LatencySource, Served, ServingPoint, Surface

QUICK = ("--trials", "2", "--max-epochs", "2", "--parallel", "1")


@pytest.fixture
def here(tmp_path: Path, home: Path, this_host: Device, model: Path) -> Path:
    """A folder with a workload, a model, and a home with this machine calibrated and a slow board."""
    (tmp_path / "mine.py").write_text(WORKLOAD)
    for path in (model, model.with_suffix(".npz")):
        shutil.copyfile(path, tmp_path / path.name)
    save_device(replace(this_host, name="slow", cores=1, gflops=this_host.gflops / 8, source="user"), home / "devices")
    return tmp_path


def test_list_and_show_devices(here: Path) -> None:
    listed = onefold(here, "devices")
    assert listed.returncode == 0, listed.stderr
    for name in (*devices(), "slow"):
        assert name in listed.stdout
    result = json.loads(onefold(here, "devices", "--json").stdout)
    assert set(result) == {*devices(), "slow"}
    shown = onefold(here, "devices", "show", "raspberry-pi-4")
    assert "Raspberry Pi 4" in shown.stdout
    assert "note" in shown.stdout
    assert json.loads(onefold(here, "devices", "show", "host", "--json").stdout)["source"] == "calibrated"


def test_probe_add_and_calibrate_devices(here: Path) -> None:
    probe = onefold(here, "devices", "probe")
    assert probe.returncode == 0
    compile(probe.stdout, "probe.py", "exec")
    (here / "boards.toml").write_text((here / "home" / "devices" / "slow.toml").read_text().replace("slow", "mine"))
    assert onefold(here, "devices", "add", "boards.toml").returncode == 0
    assert "mine" in onefold(here, "devices").stdout
    calibrated = onefold(here, "devices", "calibrate", "--seconds", "0.2")
    assert calibrated.returncode == 0, calibrated.stderr
    assert "GFLOP/s per core" in calibrated.stdout


def test_measure_save_and_serve_check(here: Path) -> None:
    words = ("measure", "small.onnx", "--device", "host", "--device", "slow", "--scenario", "multi-stream:6@20")
    measured = onefold(here, *words, "--scenario", "single-stream", "--save", "out")
    assert measured.returncode == 0, measured.stderr
    assert "onefold serve-check out" in measured.stdout
    assert "emulated" in measured.stdout
    assert "measured" in measured.stdout
    result = deploy.read(here / "out")
    assert [on.device.name for on in result.devices] == ["host", "slow"]
    assert [choice.scenario for choice in result.on("slow").choices] == ["multi-stream:6@20", "single-stream"]

    checked = onefold(here, "serve-check", "out")
    assert checked.returncode == 0, checked.stderr
    assert "ratio" in checked.stdout
    rows = json.loads(onefold(here, "serve-check", "out", "--device", "slow", "--json").stdout)
    assert [(row["device"], row["scenario"]) for row in rows] == [
        ("slow", "multi-stream:6@20"),
        ("slow", "single-stream"),
    ]
    assert all(row["ratio"] > 0 for row in rows)


def test_measuring_a_model_in_an_infinite_loop_is_an_error(here: Path) -> None:
    endless(here / "loop.onnx")
    ended = onefold(here, "measure", "loop.onnx", "--hang-timeout", "2")
    assert ended.returncode == 5
    assert ended.stderr.splitlines() == [
        "onefold: the model was stopped on host: no batch ended within 2 s; check whether it never ends, or raise "
        "--hang-timeout"
    ]


def test_fixed_batch_size_is_noted(here: Path) -> None:
    (here / "small.npz").unlink(missing_ok=True)
    loaded = onnx.load(str(here / "small.onnx"))
    loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(loaded, str(here / "small.onnx"))
    single = onefold(here, "measure", "small.onnx", "--save", "out")
    assert single.returncode == 0, single.stderr
    assert "note: the model has a fixed batch size of 1" in single.stdout
    assert "note: the model has a fixed batch size of 1" in (here / "out" / "README.md").read_text()
    assert {served.point.batch_size for served in deploy.read(here / "out").on().surface.served} == {1}
    assert "the model has a fixed batch size of 1" in onefold(here, "serve-check", "out").stdout


def test_measure_and_serve_check_in_python(here: Path) -> None:
    events: list[PointMeasured] = []

    def on_event(event: PointMeasured) -> None:
        events.append(event)
        raise ValueError("an on_event that raises does not end a measurement")

    serving = ServingOptions(space=ServingSpace((1, 4)))
    result = measure(here / "small.onnx", home=here / "home", serving=serving, save=here / "out", on_event=on_event)
    assert {served.point.batch_size for served in result.on("host").surface.served} == {1, 4}
    assert {event.device.name for event in events} == {"host"}
    assert {event.served.point for event in events} == {s.point for s in result.on().surface.served if s.runs}
    assert deploy.read(here / "out") == result
    assert {row.scenario for row in serve_check(here / "out", home=here / "home")} == {"single-stream", "offline"}


def test_external_data_is_embedded_in_the_deployment(here: Path) -> None:
    apart = here / "apart.onnx"
    onnx.save(onnx.load(here / "small.onnx"), str(apart), save_as_external_data=True, location="w", size_threshold=0)
    result = measure(apart, home=here / "home", serving=ServingOptions(space=ServingSpace((1,))), save=here / "out")
    (here / "w").unlink()
    assert result.model == {"file": "apart.onnx"}
    assert result.on().surface.size_bytes > apart.stat().st_size
    assert {row.scenario for row in serve_check(here / "out", home=here / "home")} == {"single-stream", "offline"}


def test_serve_check_notes_what_was_not_checked(here: Path) -> None:
    measured = onefold(here, "measure", "small.onnx", "--largest-batch", "2", "--save", "out", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["devices"][0]["device"]["name"] == "host"
    result = deploy.read(here / "out")
    on = result.on()
    wide = replace(on.expected(on.choices[0].point), point=replace(on.choices[0].point, threads=4096))
    changed = replace(
        on,
        surface=replace(on.surface, served=(*on.surface.served, wide)),
        choices=(replace(on.choices[0], point=wide.point), on.choices[1]),
    )
    deploy.write(here / "out", here / "out" / "model.onnx", replace(result, devices=(changed,)))
    checked = onefold(here, "serve-check", "out")
    assert checked.returncode == 0, checked.stderr
    assert "not checked: host single-stream needs 4096 threads, but only" in checked.stdout
    assert "offline" in checked.stdout


def test_fit_a_device_to_measured_points(here: Path) -> None:
    (here / "points.csv").write_text("batch,threads,latency_s\n1,1,0.001\n4,1,0.002\n16,1,0.006\n")
    fitted = onefold(here, "devices", "fit", "slow", "--model", "small.onnx", "--points", "points.csv")
    assert fitted.returncode == 0, fitted.stderr
    assert "leave-one-out error" in fitted.stdout
    assert "predicted" in fitted.stdout  # the rest of the grid
    assert read_devices(here / "home" / "devices" / "slow.toml")[0].source == "fitted"


def test_tune_for_a_device(here: Path) -> None:
    tuned = onefold(
        here, "tune", "mine.py", *QUICK, "--device", "slow", "--device", "host",
        "--minimize", "latency_s@host", "--require", "accuracy>=0.2", "--save", "out",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    assert "serving slow:" in tuned.stdout
    assert "serving host:" in tuned.stdout
    assert {path.name for path in (here / "out").iterdir()} == {
        "weights.safetensors", "model.json", "reference.npz", "manifest.json",
        "model.onnx", "model.npz", "deployment.json", "README.md",
    }  # fmt: skip
    assert deploy.load(here / "out", "slow")([[0.5, 0.5]]).shape == (1, 2)
    assert "slow" in onefold(here, "show", "mine-1").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("devices", "show", "rasberry-pi-4"), "did you mean 'raspberry-pi-4'?"),
        (("devices", "calibrate", "raspberry-pi-4"), "must be measured on the board: write the probe with"),
        (("devices", "calibrate", "nowhere"), "unknown device 'nowhere'"),
        (("devices", "add", "nothing.json", "--name", "x"), "nothing.json"),
        (("measure", "nothing.onnx"), "there is no model nothing.onnx"),
        (("measure", "mine.py"), "is not a valid ONNX model"),
        (("measure", "small.onnx", "--device", "raspbery-pi-5"), "did you mean 'raspberry-pi-5'?"),
        (("measure", "small.onnx", "--optimize-for", "speed"), "unknown --optimize-for 'speed'; known: energy"),
        (("measure", "small.onnx", "--search", "gird"), "did you mean 'grid'?"),
        (("measure", "small.onnx", "--scenario", "serve"), "serve"),
        (("measure", "small.onnx", "--scenario-goal", "best"), "unknown --scenario-goal 'best'; known: mean, p99"),
        (
            ("devices", "fit", "host", "--model", "small.onnx", "--points", "x.csv"),
            "onefold devices calibrate",
        ),
        (("tune", "mine.py", "--scenario", "offline", *QUICK), "--device host"),
        (("serve-check", "."), "is not a deployment folder"),
        (("tune", "mine.py", "--device", "jetson-nan", *QUICK), "did you mean 'jetson-nano'?"),
        (("tune", "mine.py", "--minimize", "latency_s", *QUICK), "--device host"),
        (("tune", "mine.py", "--device", "host", "--measure", "looser", *QUICK), "'looser'; known: trials, winner"),
        (
            ("tune", "mine.py", "--device", "host", "--minimize", "latency_s / eval(x)", *QUICK),
            "is not plain arithmetic",
        ),
    ],
)
def test_mistake_gets_one_line(here: Path, words: tuple[str, ...], complaint: str) -> None:
    answer = onefold(here, *words)
    assert complaint in answer.stderr
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("home")
def test_compress_shows_variants_and_selects_one(tmp_path: Path) -> None:
    fixed = WORKLOAD.replace("Choice(4, 8)", "8").replace("Float(1e-3, 1e-1, log=True)", "0.02")
    (tmp_path / "mine.py").write_text(fixed)
    trained = onefold(tmp_path, "train", "mine.py", "--epochs", "2", "--knobs", "off", "--save", "model")
    assert trained.returncode == 0, trained.stderr
    made = onefold(
        tmp_path, "compress", "model", "--sparsity", "0.5", "--precision", "int8", "--epochs", "1",
        "--max-metric-loss", "0.2", "--allow-slower", "10%", "--take", "int8", "--save", "deploy", "--save-all", "all",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "50% sparsity, int8" in made.stdout
    assert "charge at 3.85 V, estimated" in made.stdout
    assert "saved in deploy; check it with: onefold serve-check deploy" in made.stdout
    assert "selected int8: as asked" in made.stdout
    assert "saved 50% sparsity in all/sparsity-0.5" in made.stdout
    for folder in ("deploy", "all/plain", "all/int8", "all/sparsity-0.5", "all/sparsity-0.5-int8"):
        assert (tmp_path / folder / "model.packed").is_file()
    mixed = onefold(tmp_path, "compress", "model", "--precision", "mixed", "--require", "size_bytes<=1MB")
    assert mixed.returncode == 0, mixed.stderr
    assert "layers of mixed, and how much each changes the outputs alone" in mixed.stdout
    small = (
        "compress",
        "model",
        "--precision",
        "int8",
        "--precision",
        "int4",
        "--require",
        "size_bytes<=9B",
        "--save",
        "small",
    )
    unmet = onefold(tmp_path, *small)
    assert (unmet.returncode, (tmp_path / "small").exists()) == (1, False)
    assert "nothing meets size_bytes<=9 B" in unmet.stdout
    assert "nothing is saved in small" in unmet.stdout
    assert "note: int4: not built: the model has no linear layer" in unmet.stdout
    for words, says in (
        (("compress", "model", "--precision", "mixed", "--require", "size_bytes"), "is not a requirement"),
        (("compress", "model"), "no compression method is given; use one or several of --sparsity"),
        (("compress", "model", "--precision", "int9"), "did you mean 'int8'"),
        (("compress", "model", "--precision", "int8", "--take", "int9"), "did you mean 'int8'"),
        (("compress", "model", "--precision", "int8", "--allow-slower", "x"), "expected a share such as 10%"),
        (("tune", "mine.py", "--take", "int8"), "add --compress after"),
        (("tune", "mine.py", "--distill", "0.5"), "add --compress in-loop"),
        (("compress", "modle", "--precision", "int8"), "there is no folder modle"),
    ):
        answer = onefold(tmp_path, *words)
        assert answer.returncode == 2
        assert says in answer.stderr
        assert "Traceback" not in answer.stderr


def test_forget_measurements(here: Path) -> None:
    def keep(key: str, device: str, measured_on: str, contention: float = 0.0) -> None:
        served = Served(
            ServingPoint(), 0.01, 0.01, 0.01, 0.01, 0.01, 9, Energy(None, "unavailable"), None, LatencySource.MEASURED,
            disturbance=Disturbance(contention),
        )  # fmt: skip
        store.save_surface(key, Surface("a", device, (served,), 1, measured_on=measured_on))

    now = datetime.now(UTC).isoformat(timespec="seconds")
    with closing(Home(here / "home").store()) as store:
        keep("new", "host", now)
        keep("disturbed", "host", now, 0.5)
        keep("old", "host", "2020-01-01T00:00:00+00:00")
        keep("undated", "slow", "")

    def forget(*words: str) -> list[str]:
        done = onefold(here, "devices", "forget", *words)
        assert done.returncode == 0, done.stderr
        assert "studies keep their own figures" in done.stdout
        with closing(Home(here / "home").store()) as store:
            return list(store.surfaces())

    assert onefold(here, "devices", "forget").returncode == 2
    unknown = onefold(here, "devices", "forget", "hots")
    assert unknown.returncode == 2
    assert "did you mean 'host'" in unknown.stderr
    assert forget("host", "--older-than", "30d") == ["disturbed", "new", "undated"]
    assert forget("host", "--disturbed") == ["new", "undated"]
    assert forget("--older-than", "12h") == ["new"]
    assert forget("--all") == []
