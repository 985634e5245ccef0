"""A board with an agent as a device: benchmarked by the agent, and measured through it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onefold.device.agent_connection import AgentConnection
from onefold.device.device import Device
from onefold.device.probe import device_from_answer, probe_models
from onefold.device.remote_session import runtime_of
from onefold.meter.modelled import DEFAULT_WATTS, WATTS_PER_BUSY_CORE
from onefold.processes import scratch_folder
from onefold.vocabulary.errors import DeviceError

PROBE_S = 8.0


def device_of_agent(
    connection: AgentConnection,
    *,
    idle_w: float | None = None,
    busy_w: float | None = None,
    like: Device | None = None,
    seconds: float = PROBE_S,
) -> Device:
    """Benchmark the board of an agent for about `seconds`; return it as a device that is measured through the agent.

    Power that no sensor reports, no argument gives and no similar device has is that of the modelled meter.
    """
    name = connection.name
    connection.status()
    runtime = runtime_of(connection.ask({"id": secrets.token_hex(32), "do": "versions"}, {}))
    answer = _probe(connection, seconds)
    power = like or _modelled_power(answer)
    device = device_from_answer(answer, f"the agent of {name}", name, idle_w=idle_w, busy_w=busy_w, like=power)
    return replace(device, source="agent", agent=connection.fingerprint, runtime=runtime)


def _modelled_power(answer: Mapping[str, Any]) -> Device:
    cores = int(answer["cores"])
    watts = WATTS_PER_BUSY_CORE.get(str(answer.get("architecture")), DEFAULT_WATTS)
    return Device("the modelled meter", "", cores, 1.0, 1.0, 1, 0.0, watts * cores, source=f"{watts:g} W per busy core")


def _probe(connection: AgentConnection, seconds: float) -> Mapping[str, Any]:
    with scratch_folder() as folder:
        file = folder / "probe.json"
        file.write_text(json.dumps(probe_models()), encoding="utf-8")
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        request = {"id": secrets.token_hex(32), "do": "probe", "models": sha256, "seconds": seconds}
        answer = connection.ask(request, {sha256: file})
    if "error" in answer:
        raise DeviceError(f"{connection.name} cannot be benchmarked: {answer['error']}")
    result: Mapping[str, Any] = answer["answer"]
    return result
