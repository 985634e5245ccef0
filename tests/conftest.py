"""Fixtures of all tests: settings of the process, this machine, calibrated once, and small models, exported once."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from onefold.device import Device

# Threads that spin while they wait take the cores of other tests; libgomp reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("onefold", deadline=None)  # the duration of an example depends on the machine
settings.load_profile("onefold")


@pytest.fixture(autouse=True, scope="session")
def _default_hang_up() -> None:
    """Handle SIGHUP as in a terminal, also when the tests run under nohup: commands keep a signal that is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Use one thread: the networks of tests are so small that more only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _frozen_garbage() -> None:
    """Keep garbage collections from visiting the objects of imported modules and of earlier tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _short_load_tests() -> Iterator[None]:
    """Load-test for a moment: response times need not be precise in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onefold.serving.deploy.LOAD_TEST_S", 0.2)
        yield


@pytest.fixture(scope="session", autouse=True)
def _default_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests write without naming a home out of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEFOLD_HOME", str(tmp_path_factory.mktemp("default") / "home"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let studies of tests lease cores beside each other only: other programs may hold leases on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of devices with this machine's figures in it: measured once for all tests."""
    from onefold.device.host import host

    folder = tmp_path_factory.mktemp("calibrated") / "devices"
    host(folder, seconds=0.2)
    return folder


@pytest.fixture(scope="session")
def this_host(calibrated: Path) -> Device:
    """This machine."""
    from onefold.device.host import host

    return host(calibrated)


@pytest.fixture
def home(tmp_path: Path, calibrated: Path) -> Path:
    """A home of studies that knows this machine."""
    shutil.copytree(calibrated, tmp_path / "home" / "devices")
    return tmp_path / "home"


@pytest.fixture
def inline_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run studies in this process unless they ask for another engine: no worker has to import torch."""
    from onefold import ParallelismOptions

    create = inspect.unwrap(ParallelismOptions.__init__)
    names = list(ParallelismOptions.__dataclass_fields__)
    defaults = dict(zip(names, create.__defaults__ or (), strict=True))
    defaults |= {"engine": "inline", "parallel": 1, "threads": 1}  # waiting threads would spin on a busy machine
    monkeypatch.setattr(create, "__defaults__", tuple(defaults.values()))


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on every fourth image of the digits only, for tests that do not compare figures."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (pixels[::4], labels[::4]))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network as ONNX, with samples beside it."""
    import torch
    from torch import nn

    from onefold.serving.export import export

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    return export(network, [torch.randn(12, 4)], tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolutional network as ONNX, with samples beside it, small enough that its kernels compile quickly."""
    import torch
    from torch import nn

    from onefold.serving.export import export

    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return export(nn.Sequential(*body), [torch.randn(8, 3, 8, 8)], tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.fixture(scope="session")
def deployed(tiny: Path, this_host: Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment folder of that network for this machine; not to be changed: copy it."""
    from onefold.device import QUICK, open_session, runtime
    from onefold.serving.deploy import Deployment, choose_device_settings, write
    from onefold.serving.space import ServingSpace
    from onefold.serving.tuner import ServingTuner

    with open_session(this_host, this_host) as session:
        tuner = ServingTuner(session, ServingSpace((1, 4), (1,), ("all",), ("sequential",)))
        tuner.prepare(tiny)
        surface = tuner.measure(tiny, QUICK)
    result = choose_device_settings(this_host, surface, tiny, ("single-stream", "offline:8"), "mean", this_host)
    about = {"file": tiny.name}
    return write(
        tmp_path_factory.mktemp("deployed") / "deploy", tiny, Deployment(this_host, (result,), runtime(), about)
    )
