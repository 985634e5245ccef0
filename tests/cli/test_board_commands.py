"""Commands that measure on a board through a real agent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import onefold

from running_agent import RunningAgent, running_agent


@pytest.fixture
def agent(here: Path) -> Iterator[RunningAgent]:
    with running_agent(here / "board") as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, home: Path, model: Path) -> Path:
    """A folder with a model and a home."""
    for path in (model, model.with_suffix(".npz")):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


def test_commands_measure_on_the_board(agent: RunningAgent, here: Path) -> None:
    def run(*words: str) -> str:
        done = onefold(here, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    add = ("devices", "add", "pi", "--agent", agent.address, "--seconds", "0.2")
    wrong = agent.code[:-4] + ("BBBB" if agent.code.endswith("AAAA") else "AAAA")
    refused = onefold(here, *add, "--code", wrong)
    assert refused.returncode == 2
    assert "the pairing code is wrong or used up" in refused.stderr
    assert onefold(here, "devices", "add", "host", "--agent", agent.address, "--code", agent.code).returncode == 2
    assert "pi: saved in" in run(*add, "--code", agent.code)
    assert "pi: saved in" in run(*add)  # again: it is paired already
    assert agent.address in run("devices", "show", "pi")
    assert "pi " in run("devices", "list")

    assert "measured" in run("measure", "small.onnx", "--device", "pi", "--largest-batch", "2", "--save", "deploy")
    assert "pi " in run("serve-check", "deploy")
    compressed = run("compress", "small.onnx", "--precision", "int8-dynamic", "--device", "pi")
    assert "int8" in compressed

    agent.kill()
    assert "does not answer" in run("devices", "show", "pi")
    assert "the agent still knows this machine" in run("devices", "remove", "pi")
    assert onefold(here, "devices", "show", "pi").returncode == 2
    assert onefold(here, "devices", "remove", "raspberry-pi-4").returncode == 2


def test_agent_is_packed(here: Path) -> None:
    packed = onefold(here, "agent", "pack", "-o", "agent.pyz")
    assert packed.returncode == 0, packed.stderr
    assert "python3 agent.pyz serve" in packed.stdout
    assert (here / "agent.pyz").is_file()
    assert onefold(here, "agent", "pack", "-o", "missing/agent.pyz").returncode == 2
