"""Fake energy counters: a powercap tree with its /proc/stat, and an NVML library."""

from __future__ import annotations

import os
from pathlib import Path

RANGE_UJ = 262_143_328_850  # what an Intel package says


class FakeMachine:
    """A machine with two packages, and the subdomains and duplicates of real powercap trees."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stat = folder / "powercap", folder / "stat"
        for name in ("intel-rapl:0", "intel-rapl:1"):
            self._make(name, f"package-{name[-1]}")
        self._make("intel-rapl:0:0", "core", energy_uj=77_000_000)
        self._make("intel-rapl:0:1", "dram", energy_uj=88_000_000)
        self._make("intel-rapl:2", "psys", energy_uj=99_000_000)
        self._make("intel-rapl-mmio:0", "package-0", energy_uj=66_000_000)
        self.work(0)

    def _make(self, name: str, title: str, energy_uj: int = 0) -> None:
        zone = self.root / name
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{title}\n")
        (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (zone / "energy_uj").write_text(f"{energy_uj}\n")

    def counter(self, package: int) -> Path:
        return self.root / f"intel-rapl:{package}" / "energy_uj"

    def draw(self, joules: float, package: int = 0) -> None:
        """Advance the counter of a package; it wraps at its maximum."""
        counter = self.counter(package)
        counter.write_text(f"{(int(counter.read_text()) + round(joules * 1e6)) % RANGE_UJ}\n")

    def work(self, seconds: float) -> None:
        """Set the busy seconds of all processors since boot."""
        ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
        # user nice system idle iowait irq softirq steal: the busy ones in equal parts, the others large.
        part = ticks // 5
        self.stat.write_text(f"cpu  {ticks - 4 * part} {part} {part} 999999 88888 {part} {part} 7777 0 0\ncpu0 1 2 3\n")


class FakeNvmlError(Exception):
    """What the library raises."""


class FakeNvml:
    """The few functions of pynvml that are used, over boards by index and by UUID."""

    NVMLError = FakeNvmlError

    def __init__(self, millijoules: dict[int | str, int] | None = None, *, driver: bool = True) -> None:
        self.millijoules = {0: 1_000_000} if millijoules is None else millijoules
        self._driver = driver

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own name
        if not self._driver:
            raise FakeNvmlError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int | str:  # noqa: N802
        return self._handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int | str:  # noqa: N802
        return self._handle(uuid)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int | str) -> int:  # noqa: N802
        if self.millijoules[handle] < 0:
            raise FakeNvmlError("Not Supported")
        return self.millijoules[handle]

    def _handle(self, key: int | str) -> int | str:
        if key not in self.millijoules:
            raise FakeNvmlError("Invalid Argument")
        return key
