"""An agent on another network: a namespace with a link of its own, one core and little memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from onefold.device import TimingEffort
from onefold.device.agent_device import device_of_agent
from onefold.device.remote_session import RemoteSession
from onefold.vocabulary.serving import ServingPoint
from running_agent import WAIT_S, RunningAgent, running_agent

SLOW = TimingEffort(0, min_runs=20, max_runs=20, max_seconds=0.0, idle_s=0.05)  # a second, in which the link is cut
MEMORY_BYTES = 512_000_000


def ip(*words: str, check: bool = True) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=check, timeout=60).returncode == 0


def can_create_networks() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("prlimit") is None:
        return False
    name = f"onefold-try-{os.getpid()}"
    created = ip("netns", "add", name, check=False)
    if created:
        ip("netns", "del", name)
    return created


pytestmark = pytest.mark.skipif(not can_create_networks(), reason="needs root, ip and prlimit")


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[str, str]]:
    """A namespace and the name of the link into it, with 10.213.N.1 here and 10.213.N.2 there."""
    number = os.getpid() % 250
    namespace, here, there = f"onefold-{os.getpid()}", f"ofh{os.getpid() % 10**8}", f"oft{os.getpid() % 10**8}"
    ip("netns", "add", namespace)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", namespace)
        ip("addr", "add", f"10.213.{number}.1/24", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", namespace, "addr", "add", f"10.213.{number}.2/24", "dev", there)
        ip("-n", namespace, "link", "set", there, "up")
        yield namespace, here
    finally:
        ip("netns", "del", namespace)  # and with it the link


@pytest.fixture(scope="module")
def agent(network: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    core = str(min(os.sched_getaffinity(0)))
    prefix = ["ip", "netns", "exec", network[0], "taskset", "-c", core, "prlimit", f"--data={MEMORY_BYTES}"]
    bind = f"10.213.{os.getpid() % 250}.2"
    with running_agent(tmp_path_factory.mktemp("board"), prefix=prefix, bind=bind) as running:
        yield running


def test_board_is_what_it_is_confined_to(agent: RunningAgent) -> None:
    with agent.connect() as connection:
        device = device_of_agent(connection, seconds=0.2)
        assert connection.status()["board"]["cores"] == 1
    assert device.cores == 1
    assert psutil.Process(agent.pid).cpu_affinity() == [min(os.sched_getaffinity(0))]


def test_measuring_survives_a_dead_link(agent: RunningAgent, network: tuple[str, str], model: Path) -> None:
    """Packets are lost without an error on either side, and arrive again later."""
    with RemoteSession(agent.device(), agent.connect()) as session:
        session.prepare(model, None, [ServingPoint()])
        before = len(agent.results)
        served = []
        thread = threading.Thread(target=lambda: served.append(session.serve(model, ServingPoint(), SLOW)))
        thread.start()
        deadline = time.monotonic() + WAIT_S
        with agent.connect() as connection:
            while not connection.status()["waiting"]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        ip("link", "set", network[1], "down")
        while len(agent.results) == before:  # the agent goes on measuring meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ip("link", "set", network[1], "up")
        thread.join(WAIT_S * 2)
        assert served[0].runs == 20
        assert len(agent.results) == before + 1
