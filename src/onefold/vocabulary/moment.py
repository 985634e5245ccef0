"""Points in time that can be compared although the clock of the machine is set, or jumps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time.

    Args:
        wall_s: Seconds since 1970 by the clock of the machine, which may be set. It is what people are shown.
        boot: The machine and its boot; empty if unknown.
        boot_s: Seconds since that boot, by a clock that cannot be set.
    """

    wall_s: float
    boot: str = ""
    boot_s: float = 0.0

    def since(self, earlier: Moment) -> float:
        """Return the seconds since an earlier moment, at least 0.

        They are exact within one boot. Between boots or machines only their clocks can tell.
        """
        if self.boot and self.boot == earlier.boot:
            return max(0.0, self.boot_s - earlier.boot_s)
        return max(0.0, self.wall_s - earlier.wall_s)
