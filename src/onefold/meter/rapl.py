"""Joules of the processor, from the energy counters that Linux shows under powercap (Intel and AMD)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock

from onefold.meter.meter import Window
from onefold.meter.regularly import Regularly
from onefold.meter.window import UNAVAILABLE, EnergySoFar, process_window
from onefold.vocabulary.records import Energy

_MOST_WATTS = 2000.0  # more than any package draws: how soon a counter may come round


class Package:
    """The counter of one processor package, unwrapped.

    The counter of the hardware starts again from zero every few minutes or hours, after `max_energy_range_uj`; joules
    are right as long as somebody asks for them once in that time. OSError when the counter is gone or not for us.
    """

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._read_uj()
        self._total_uj = 0
        self._lock = Lock()

    @property
    def seconds_to_wrap(self) -> float:
        """How soon the counter could start again, at a power that no package has."""
        return self._range_uj / 1e6 / _MOST_WATTS

    def joules(self) -> float:
        """Joules since this object was made."""
        with self._lock:
            now_uj = self._read_uj()
            self._total_uj += (now_uj - self._last_uj) % self._range_uj
            self._last_uj = now_uj
            return self._total_uj / 1e6

    def _read_uj(self) -> int:
        return int(self._counter.read_text())


class RaplMeter:
    """Joules of all processor packages, in the share that this process had in the machine's work.

    A package counts for everybody on the machine. Of the joules of a window this process is charged with its own
    processor time over the busy time of all processors (`/proc/stat`), so that trials side by side each pay for
    themselves and together for the whole; power that an idle core draws goes the same way. That clock ticks every
    10 ms: the share of windows shorter than some tenths of a second is rough. Memory sticks, disks and accelerators
    have counters of their own, which are not in the sum.

    Without counters that this user may read the meter says `unavailable`, and `reason` says why.
    """

    def __init__(self, root: Path = Path("/sys/class/powercap"), *, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._packages: list[Package] = []
        self.reason = ""
        try:
            self._packages = [Package(folder) for folder in _package_folders(root)]
            if self._packages:
                self._busy_s()
            else:
                self.reason = f"there are no processor energy counters in {root}"
        except PermissionError:
            # Closed since CVE-2020-8694: with them one program can guess at the secrets of another.
            self.reason = (
                f"the counters are for root alone; open them with: sudo chmod a+r {root}/intel-rapl:*/energy_uj"
            )
        except (OSError, ValueError, LookupError) as error:
            self.reason = f"the processor energy counters in {root} cannot be read: {error}"
        if self.reason:
            self._packages = []
        self._reading = Regularly(
            self._keep_up, min((package.seconds_to_wrap for package in self._packages), default=1e9)
        )

    @property
    def source(self) -> str:
        """`rapl`, or `unavailable` where there are no counters."""
        return "rapl" if self._packages else "unavailable"

    def window(self) -> AbstractContextManager[Window]:
        """Opens a window."""
        return self._window() if self._packages else process_window(lambda: lambda _: UNAVAILABLE)

    @contextmanager
    def _window(self) -> Iterator[Window]:
        with self._reading.needed(), process_window(self._start) as window:
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
            # The machine was busy for at least as long as we were; its clock is coarser than ours.
            share = cpu_s / max(machine_s, cpu_s) if cpu_s > 0 else 0.0
            return Energy(spent_j * share, "rapl")

        return so_far

    def _joules(self) -> float:
        return sum(package.joules() for package in self._packages)

    def _keep_up(self) -> None:
        with suppress(OSError):  # a counter that went away is found out by the window itself
            self._joules()

    def _busy_s(self) -> float:
        """Seconds that all processors together were at work, since boot."""
        with self._stat.open() as lines:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, lines.readline().split()[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _package_folders(root: Path) -> list[Path]:
    # `intel-rapl:0` is a package and `intel-rapl:0:1` a part of it; `psys`, the whole board, holds the packages again.
    folders = [folder for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
    return [folder for folder in folders if (folder / "name").read_text().startswith("package")]
