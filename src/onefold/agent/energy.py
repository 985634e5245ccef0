"""The energy of a board during a window of work, if it has a counter or a sensor: RAPL, INA3221 and hwmon, battery.

It is that of the whole processor or board, idle power included: what runs beside the model is drawn from it, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onefold.agent.probe_program import SYSTEM, is_package, power_rails, read_number

SAMPLE_EVERY_S = 0.02
UNAVAILABLE = "unavailable"

Finish = Callable[[float], "float | None"]  # the duration of the window -> its joules
Start = Callable[[], Finish]


class EnergySource:
    """Where the joules of this board come from: `source` names it, or is `unavailable`."""

    def __init__(self, system: Path = SYSTEM) -> None:
        self.source, self._start = _choose(system)

    @contextmanager
    def window(self) -> Iterator[Callable[[], Mapping[str, Any]]]:
        """Measure the block; what is yielded returns its cost afterwards, a `Measurement` as JSON."""
        cost: dict[str, Any] = {}
        finish = self._start()
        cpu_s, start_s = time.process_time(), time.perf_counter()
        try:
            yield lambda: cost
        finally:
            time_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
            joules = finish(time_s)
            energy = {"joules": joules, "source": UNAVAILABLE if joules is None else self.source}
            cost.update({"time_s": time_s, "cpu_s": cpu_s, "energy": energy, "memory_bytes": None})


def _choose(system: Path) -> tuple[str, Start]:
    packages = [path for path in sorted((system / "class/powercap").glob("intel-rapl:*")) if is_package(path)]
    if packages and all(read_number(path / "energy_uj") is not None for path in packages):
        return "rapl", lambda: _counted(packages)
    rails = power_rails(system)
    inputs = [name for name in rails if name.upper().endswith(("_IN", "/IN"))]
    if rails:
        chosen = [rails[name] for name in inputs[:1]] or list(rails.values())
        source = "ina3221" if any("iio:device" in name for name in rails) else "hwmon"
        return source, lambda: _sampled(chosen)
    for folder in sorted((system / "class/power_supply").glob("*")):
        if _battery_watts(folder) is not None:
            return "battery", lambda: _sampled([lambda: _battery_watts(folder)])  # noqa: B023 - the loop ends here
    return UNAVAILABLE, lambda: lambda _: None


def _counted(packages: list[Path]) -> Finish:
    """Read the counters of the processor packages, which wrap."""
    before = [read_number(path / "energy_uj") for path in packages]
    ranges = [read_number(path / "max_energy_range_uj") or 1e12 for path in packages]

    def finish(_: float) -> float | None:
        joules = 0.0
        for path, earlier, wraps_at in zip(packages, before, ranges):
            now = read_number(path / "energy_uj")
            if now is None or earlier is None:
                return None
            joules += (now - earlier) % wraps_at / 1e6
        return joules

    return finish


def _sampled(sensors: list[Callable[[], float | None]]) -> Finish:
    """Read power sensors from a thread; the sensor with the highest mean is the one of the whole board."""
    samples: list[list[float]] = [[] for _ in sensors]
    done = threading.Event()

    def sample() -> None:
        while True:
            for values, read in zip(samples, sensors):
                values += [watts for watts in [read()] if watts is not None]
            if done.wait(SAMPLE_EVERY_S):
                return

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()

    def finish(time_s: float) -> float | None:
        done.set()
        sampler.join()
        means = [sum(values) / len(values) for values in samples if values]
        return max(means) * time_s if means else None

    return finish


def _battery_watts(folder: Path) -> float | None:
    """Return the power that a battery gives; None if it is not discharging."""
    try:
        if (folder / "status").read_text().strip() != "Discharging":
            return None
    except OSError:
        return None
    power = read_number(folder / "power_now")
    if power is not None:
        return abs(power) / 1e6
    amperes, volts = read_number(folder / "current_now"), read_number(folder / "voltage_now")
    return None if amperes is None or volts is None else abs(amperes * volts) / 1e12
