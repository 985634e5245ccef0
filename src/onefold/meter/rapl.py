"""Measure the energy of the processor with the RAPL counters of Linux's powercap (Intel and AMD)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock

from onefold.meter.meter import Window
from onefold.meter.periodic import PeriodicCall
from onefold.meter.window import UNAVAILABLE, EnergySoFar, process_window
from onefold.vocabulary.records import Energy

_MAX_WATTS = 2000.0  # more than any package draws: bounds how soon a counter may wrap


class RaplPackage:
    """The counter of one processor package, unwrapped.

    The hardware counter wraps to zero every few minutes or hours, after `max_energy_range_uj`; joules are right if they
    are read at least once in that time. Raises OSError if the counter is gone or not readable.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._read_uj()
        self._total_uj = 0
        self._lock = Lock()

    @property
    def seconds_to_wrap(self) -> float:
        """Return a lower bound of the time until the counter wraps."""
        return self._range_uj / 1e6 / _MAX_WATTS

    def joules(self) -> float:
        """Return the joules since this object was created."""
        with self._lock:
            now_uj = self._read_uj()
            self._total_uj += (now_uj - self._last_uj) % self._range_uj
            self._last_uj = now_uj
            return self._total_uj / 1e6

    def _read_uj(self) -> int:
        return int(self._counter.read_text())


class RaplMeter:
    """This process's share of the joules of all processor packages.

    The counters are of the whole machine. This process is charged its processor time over the busy time of all
    processors (`/proc/stat`), so that parallel trials add up to the whole, idle power included. That clock ticks every
    10 ms, so the share is imprecise for windows below some tenths of a second. DRAM, disks and accelerators are not
    included.

    Without counters that this user may read the source is `unavailable`, and `reason` says why.
    """

    def __init__(self, root: Path = Path("/sys/class/powercap"), *, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._packages: list[RaplPackage] = []
        self.reason = ""
        try:
            self._packages = [RaplPackage(folder) for folder in _package_folders(root)]
            if self._packages:
                self._busy_s()
            else:
                self.reason = f"there are no processor energy counters in {root}"
        except PermissionError:
            # Readable only by root since CVE-2020-8694, a side channel.
            self.reason = (
                f"only root may read the counters; open them with: sudo chmod a+r {root}/intel-rapl:*/energy_uj"
            )
        except (OSError, ValueError, LookupError) as error:
            self.reason = f"the processor energy counters in {root} cannot be read: {error}"
        if self.reason:
            self._packages = []
        self._reader = PeriodicCall(
            self._read_counters, min((package.seconds_to_wrap for package in self._packages), default=1e9)
        )

    @property
    def source(self) -> str:
        """Return `rapl`, or `unavailable` if there are no counters."""
        return "rapl" if self._packages else "unavailable"

    def window(self) -> AbstractContextManager[Window]:
        return self._window() if self._packages else process_window(lambda: lambda _: UNAVAILABLE)

    @contextmanager
    def _window(self) -> Iterator[Window]:
        with self._reader.active(), process_window(self._start) as window:
            yield window

    def _start(self) -> EnergySoFar:
        try:
            busy_s, joules = self._busy_s(), self._joules()
        except OSError:
            return lambda _: UNAVAILABLE

        def so_far(cpu_s: float) -> Energy:
            try:
                spent_j, machine_s = self._joules() - joules, self._busy_s() - busy_s
            except OSError:
                return UNAVAILABLE
            # The machine was busy at least as long as this process; its clock is coarser.
            share = cpu_s / max(machine_s, cpu_s) if cpu_s > 0 else 0.0
            return Energy(spent_j * share, "rapl")

        return so_far

    def _joules(self) -> float:
        return sum(package.joules() for package in self._packages)

    def _read_counters(self) -> None:
        with suppress(OSError):  # the window notices a counter that has gone
            self._joules()

    def _busy_s(self) -> float:
        """Return the busy seconds of all processors since boot."""
        with self._stat.open() as lines:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, lines.readline().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _package_folders(root: Path) -> list[Path]:
    # `intel-rapl:0` is a package and `intel-rapl:0:1` a part of it; `psys`, the whole board, includes the packages.
    folders = [folder for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
    return [folder for folder in folders if (folder / "name").read_text().startswith("package")]
