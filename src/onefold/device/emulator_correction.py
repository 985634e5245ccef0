"""What a real board measured corrects what the emulator says, and tells how far to trust it.

    log(measured / emulated) = scale + batch_slope · log(batch) + thread_slope · log(threads) + noise

Each coefficient is drawn towards 0, "the emulator is right", as strongly as is sensible before anything was measured:
with one point only the scale moves, with a dozen the points decide. Energy is corrected in the same way.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import DeviceError, suggestion

Emulated = Callable[[int, int], float]

_COLUMNS = ("batch", "threads", "latency_s", "energy_j")
# Before measuring, an emulator may be wrong by a factor of e^±1 or so, by more at large batches or with more threads.
_SPREAD = np.array([1.0, 0.15, 0.3])
_NOISE, _NOISE_POINTS = 0.05, 3.0  # and points scatter by about 5 %, as if three had shown it


@dataclass(frozen=True, slots=True)
class BoardMeasurement:
    """What one model really took on the board, for one batch."""

    batch: int
    threads: int
    latency_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """How measured values differ from emulated ones, in logarithms, with what is needed to say how surely."""

    scale: float
    batch_slope: float
    thread_slope: float
    noise: float  # how points scatter around it
    freedom: float  # the degrees of freedom of that figure
    covariance: tuple[float, ...]  # of the coefficients, over the square of the noise, row by row

    def factor(self, batch: int, threads: int) -> tuple[float, float, float]:
        """What to multiply an emulated value with, and the ends of its 95 % interval for a new measurement."""
        from scipy.stats import t

        x = _features(batch, threads)
        middle = float(x @ np.array([self.scale, self.batch_slope, self.thread_slope]))
        spread = self.noise * math.sqrt(1.0 + float(x @ np.reshape(self.covariance, (3, 3)) @ x))
        reach = float(t.ppf(0.975, self.freedom)) * spread
        return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors at points that were left out of the fit, each in turn."""

    median: float
    worst: float
    points: int


@dataclass(frozen=True, slots=True)
class CorrectedEstimate:
    """What the corrected emulator predicts for one batch; the intervals are where 95 of 100 measurements would be."""

    latency_s: float
    low_s: float
    high_s: float
    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None


@dataclass(frozen=True, slots=True)
class EmulatorFit:
    """The emulator of one device corrected by measured points; it survives JSON. Errors are None for a single point."""

    latency: Correction
    errors: HeldOutErrors | None
    points: tuple[BoardMeasurement, ...]
    energy: Correction | None = None
    energy_errors: HeldOutErrors | None = None

    def predict(
        self, batch: int, threads: int, emulated_s: float, emulated_j: float | None = None
    ) -> CorrectedEstimate:
        """What the board would take, given what the emulator says for the same batch and threads."""
        middle, low, high = (factor * emulated_s for factor in self.latency.factor(batch, threads))
        if self.energy is None or emulated_j is None:
            return CorrectedEstimate(middle, low, high)
        joules = (factor * emulated_j for factor in self.energy.factor(batch, threads))
        return CorrectedEstimate(middle, low, high, *joules)


def fit_emulator(
    points: Sequence[BoardMeasurement], emulated: Emulated, emulated_j: Emulated | None = None
) -> EmulatorFit:
    """The emulator corrected by these points; `emulated(batch, threads)` is what it says, in seconds and in joules.

    Energy is fitted by the points that have it, where `emulated_j` is given.
    """
    if not points:
        raise DeviceError("a fit needs at least one measured point, but got none")
    times = [(point.batch, point.threads, point.latency_s, emulated(point.batch, point.threads)) for point in points]
    energies = [
        (point.batch, point.threads, point.energy_j, emulated_j(point.batch, point.threads))
        for point in points
        if point.energy_j is not None and emulated_j is not None
    ]
    return EmulatorFit(
        latency=_correction(times),
        errors=_left_out(times),
        points=tuple(points),
        energy=_correction(energies) if energies else None,
        energy_errors=_left_out(energies),
    )


_Row = tuple[int, int, float, float]  # batch, threads, measured, emulated


def _correction(rows: Sequence[_Row]) -> Correction:
    """Ridge regression whose noise and strength are settled in turn until they agree."""
    x = np.stack([_features(batch, threads) for batch, threads, _, _ in rows])
    y = np.log([measured / _positive(emulated) for _, _, measured, emulated in rows])
    noise, freedom = _NOISE, _NOISE_POINTS
    for _ in range(50):
        covariance = np.linalg.inv(x.T @ x + np.diag((noise / _SPREAD) ** 2))
        found = covariance @ x.T @ y
        spent = float(np.trace(x @ covariance @ x.T))  # how many coefficients the points have decided
        freedom = _NOISE_POINTS + max(0.0, len(rows) - spent)
        before, noise = noise, math.sqrt((_NOISE_POINTS * _NOISE**2 + float(np.sum((y - x @ found) ** 2))) / freedom)
        if abs(noise - before) < 1e-9:
            break
    scale, batch_slope, thread_slope = map(float, found)
    return Correction(scale, batch_slope, thread_slope, noise, freedom, tuple(map(float, covariance.ravel())))


def _left_out(rows: Sequence[_Row]) -> HeldOutErrors | None:
    if len(rows) < 2:
        return None
    errors = []
    for place, (batch, threads, measured, emulated) in enumerate(rows):
        others = [*rows[:place], *rows[place + 1 :]]
        predicted = _correction(others).factor(batch, threads)[0] * emulated
        errors.append(abs(predicted / measured - 1.0))
    return HeldOutErrors(median(errors), max(errors), len(errors))


def _features(batch: int, threads: int) -> NDArray[np.float64]:
    return np.array([1.0, math.log(batch), math.log(threads)])


def _positive(emulated: float) -> float:
    if not emulated > 0 or not math.isfinite(emulated):
        raise DeviceError(f"the emulator must say a number above 0, but says {emulated!r}")
    return emulated


def read_board_measurements(path: Path) -> tuple[BoardMeasurement, ...]:
    """The points of a CSV file with the header batch,threads,latency_s and, if it was measured, energy_j.

    Latency and energy are of a whole batch. DeviceError names the line that is wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DeviceError(f"the measured points in {path} cannot be read: {error}") from error
    header = [name.strip() for name in rows[0]] if rows else []
    for name in header:
        if name not in _COLUMNS:
            raise DeviceError(f"{path}, line 1: there is no column {name!r}{suggestion(name, _COLUMNS)}")
    missing = [name for name in _COLUMNS[:3] if name not in header]
    if missing:
        raise DeviceError(
            f"{path}, line 1: the header must be batch,threads,latency_s[,energy_j]; it lacks {missing[0]}"
        )
    points = [_point(header, row, f"{path}, line {line}") for line, row in enumerate(rows[1:], 2) if any(row)]
    if not points:
        raise DeviceError(f"{path} has a header but no measured point below it")
    return tuple(points)


def _point(header: list[str], row: list[str], where: str) -> BoardMeasurement:
    if len(row) != len(header):
        raise DeviceError(f"{where}: there must be {len(header)} values, as in the header, but got {len(row)}")
    cells = {name: cell.strip() for name, cell in zip(header, row)}
    batch, threads = (_number(cells[name], name, where, whole=True) for name in ("batch", "threads"))
    energy = cells.get("energy_j")
    return BoardMeasurement(
        int(batch),
        int(threads),
        _number(cells["latency_s"], "latency_s", where),
        _number(energy, "energy_j", where) if energy else None,
    )


def _number(cell: str, name: str, where: str, *, whole: bool = False) -> float:
    try:
        value = float(int(cell)) if whole else float(cell)
    except ValueError:
        value = math.nan
    if not value > 0 or math.isinf(value):
        kind = "a whole number of at least 1" if whole else "a number above 0"
        raise DeviceError(f"{where}: {name} must be {kind}, but got {cell!r}")
    return value
