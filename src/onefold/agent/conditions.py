"""The state of a board that decides whether a measurement is good: clock frequency, temperature and throttling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onefold.agent.probe_program import SYSTEM, read_number

_CPUS = "devices/system/cpu"
_PI = "devices/platform/soc/soc:firmware/get_throttled"
# Bits of the Raspberry Pi's firmware that hold now; the same bits shifted by 16 have held since the board was started.
_PI_BITS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
_PROCESSOR_COOLERS = ("processor", "cpufreq", "thermal-cpufreq", "cpu-", "intel_powerclamp")


@dataclass(frozen=True)
class Conditions:
    """The state of a board at one moment; what its system does not report is empty."""

    frequencies_ghz: tuple[float, ...]  # of each core now
    governor: str
    temperature_c: float | None  # of the hottest zone
    limits: tuple[str, ...]  # what slows the processor down now
    throttle_events: int  # counted since the board was started; only differences mean something


def read_conditions(system: Path = SYSTEM) -> Conditions:
    """Return the present state of this board."""
    cpus = system / _CPUS
    frequencies = [read_number(path) for path in sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))]
    governors = sorted({_text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    temperatures = [read_number(path) for path in system.glob("class/thermal/thermal_zone*/temp")]
    degrees = [value / 1000 for value in temperatures if value is not None and -50_000 < value < 200_000]
    events = [read_number(path) for path in cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
    return Conditions(
        frequencies_ghz=tuple(value / 1e6 for value in frequencies if value is not None),
        governor=", ".join(governors),
        temperature_c=max(degrees) if degrees else None,
        limits=(*_pi_limits(system), *_cooling(system), *_capped(cpus)),
        throttle_events=int(sum(value for value in events if value is not None)),
    )


def throttling(before: Conditions, after: Conditions) -> str:
    """Return why the processor was slowed down between two moments; empty if nothing says so."""
    reasons = list(dict.fromkeys([*before.limits, *after.limits]))
    if after.throttle_events > before.throttle_events:
        reasons.append("the processor reports thermal throttling")
    return "; ".join(reasons)


def _pi_limits(system: Path) -> list[str]:
    try:
        flags = int(_text(system / _PI) or "0", 16)
    except ValueError:
        return []
    return [reason for bit, reason in _PI_BITS.items() if flags >> bit & 1]


def _cooling(system: Path) -> list[str]:
    """Return the cooling devices that slow the processor down now, such as `cpufreq-cpu0`."""
    active = []
    for folder in sorted(system.glob("class/thermal/cooling_device*")):
        kind = _text(folder / "type")
        if kind.lower().startswith(_PROCESSOR_COOLERS) and (read_number(folder / "cur_state") or 0) > 0:
            active.append(f"cooled by {kind}")
    return list(dict.fromkeys(active))


def _capped(cpus: Path) -> list[str]:
    for folder in sorted(cpus.glob("cpu[0-9]*/cpufreq")):
        allowed, most = read_number(folder / "scaling_max_freq"), read_number(folder / "cpuinfo_max_freq")
        if allowed and most and allowed < most:
            return [f"frequency limited to {allowed / 1e6:g} of {most / 1e6:g} GHz"]
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
