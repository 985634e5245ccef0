"""Ctrl-C, SIGTERM and SIGHUP at every command: one sentence, exit code 130, no traceback and no process left."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from shell import begun, has_loaded_torch, wait_until

from misbehaving_models import endless
from onefold.study import Home
from onefold.vocabulary.records import StudyState

DEADLINE_S = 120.0


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def check_end(process: subprocess.Popen[str], started: list[psutil.Process]) -> str:
    """Check exit code, messages and processes; return what was said."""
    _, err = process.communicate(timeout=DEADLINE_S)
    _, alive = psutil.wait_procs(started, timeout=DEADLINE_S)
    assert not alive
    assert "Traceback" not in err, err
    assert process.returncode == 130, err
    return err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_loaded(number: signal.Signals, tmp_path: Path) -> None:
    marker = tmp_path / "loading"
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text(f"open({str(marker)!r}, 'w').close()\nimport time\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", "list"],
        stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "slow"), *sys.path))},
    )  # fmt: skip
    wait_until(marker.exists)
    process.send_signal(number)
    assert check_end(process, []) == "onefold: interrupted before the command began\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_package_is_loaded(number: signal.Signals, tmp_path: Path) -> None:
    marker = tmp_path / "loading"
    (tmp_path / "onefold").mkdir()
    (tmp_path / "onefold" / "__init__.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nimport time\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "from onefold_cli import main; main()"],  # as the installed script does
        stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
    )  # fmt: skip
    wait_until(marker.exists)
    process.send_signal(number)
    assert check_end(process, []) == "onefold: interrupted before the command began\n"


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6])
def test_a_signal_while_a_command_loads_native_modules(delay_s: float, tmp_path: Path, home: Path) -> None:
    """An exception in the middle of the initialization of a native module would crash it."""
    endless(tmp_path / "loop.onnx")
    process = begun(tmp_path, "measure", "loop.onnx", "--hang-timeout", "600")
    wait_until(lambda: "numpy" in Path(f"/proc/{process.pid}/maps").read_text())
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in check_end(process, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_measure(number: signal.Signals, tmp_path: Path, home: Path) -> None:
    endless(tmp_path / "loop.onnx")
    process = begun(tmp_path, "measure", "loop.onnx", "--hang-timeout", "600")
    wait_until(lambda: any(child.cpu_times().user > 1 for child in children(process)))  # it loops
    started = children(process)
    process.send_signal(number)
    assert "onefold: `onefold measure` was interrupted; run it again\n" in check_end(process, started)


def test_ctrl_c_stops_starting_children_silently(tmp_path: Path, home: Path) -> None:
    endless(tmp_path / "loop.onnx")
    process = subprocess.Popen(
        [sys.executable, "-m", "onefold.cli", "measure", "loop.onnx"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        env={**os.environ, "ONEFOLD_HOME": str(home)},
    )  # fmt: skip
    wait_until(lambda: any("onefold.device.runner" in child.cmdline() for child in children(process)))
    started = children(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert "was interrupted" in check_end(process, started)


@pytest.mark.parametrize("command", ["compress", "compile"])
def test_a_signal_during_other_commands(command: str, tmp_path: Path, home: Path, model: Path) -> None:
    shutil.copyfile(model, tmp_path / "small.onnx")
    words = {
        "compress": ("small.onnx", "--save", "out"),
        "compile": ("small.onnx", "--save", "out", "--minutes", "5"),
    }[command]
    process = begun(tmp_path, command, *words)
    wait_until(lambda: has_loaded_torch(process) or bool(children(process)))
    started = children(process)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in check_end(process, started)


def test_the_end_of_the_terminal_hands_over_the_best_model_so_far(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        options = ["--trials", "50", "--parallel", "1", "--name", "s", "--knobs", "off", "--home", str(home)]
        command = [sys.executable, "-m", "onefold.cli", "tune", "onefold.testing.toy:Spirals", *options]
        os.execv(command[0], command)
    process = psutil.Process(pid)

    def has_result() -> bool:
        os.read(terminal, 1 << 16)
        if not (home / "store.db").exists():
            return False
        with closing(Home(home).store()) as store:
            return bool(store.studies()) and any(trial.metrics for trial in store.trials("s"))

    wait_until(has_result)
    started = process.children(recursive=True)
    os.close(terminal)  # as when a window is closed or a connection is lost
    _, status = os.waitpid(pid, 0)
    _, alive = psutil.wait_procs(started, timeout=DEADLINE_S)
    assert not alive
    assert os.waitstatus_to_exitcode(status) == 130
    with closing(Home(home).store()) as store:
        assert store.study("s").state is StudyState.INTERRUPTED
    assert (home / "studies" / "s" / "best" / "weights.safetensors").exists()


def test_a_study_under_nohup_survives_the_end_of_its_terminal(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        quick = ("--trials", "2", "--max-epochs", "2", "--parallel", "1", "--knobs", "off")
        process = begun(tmp_path, "tune", "onefold.testing.toy:Spirals", *quick, "--json")
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert process.stdout is not None
    assert '"kind": "started"' in process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert '"kind": "ended"' in out
