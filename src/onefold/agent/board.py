"""What an agent reports about its board."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from onefold.agent import probe_program
from onefold.agent.conditions import read_conditions
from onefold.agent.energy import EnergySource


def describe_board() -> dict[str, Any]:
    """Return the description and the present state of this board as JSON; what is unknown is null or empty."""
    conditions = read_conditions()
    return {
        "title": probe_program.title(),
        "hostname": platform.node(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": probe_program.core_count(),
        "memory_bytes": probe_program.memory_bytes(),
        "frequency_ghz": probe_program.frequency_ghz(),
        "frequencies_ghz": conditions.frequencies_ghz,
        "governor": conditions.governor,
        "temperature_c": conditions.temperature_c,
        "throttling": "; ".join(conditions.limits),
        "throttle_events": conditions.throttle_events,
        "load": os.getloadavg()[0],
        "energy": EnergySource().source,
    }
