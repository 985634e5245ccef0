"""Correct the emulator of a device by latencies that were measured on the real board, with prediction intervals.

    log(measured / emulated) = scale + batch_slope · log(batch) + thread_slope · log(threads) + noise

A ridge regression shrinks each coefficient toward 0, the uncorrected emulator: with one point only the scale moves,
with a dozen the data dominate the prior. Energy is corrected in the same way.
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

from onefold.vocabulary.documents import read_document
from onefold.vocabulary.errors import DeviceError, unknown

Emulated = Callable[[int, int], float]

_COLUMNS = ("batch", "threads", "latency_s", "energy_j")
# Prior standard deviations: an emulator may be off by a factor of e^±1, and more at large batches or with more threads.
_PRIOR_SPREAD = np.array([1.0, 0.15, 0.3])
_PRIOR_NOISE, _PRIOR_POINTS = 0.05, 3.0  # points scatter by about 5 %, with the weight of three observations


@dataclass(frozen=True, slots=True)
class BoardMeasurement:
    """The measured cost of one batch on the board."""

    batch: int
    threads: int
    latency_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """The fitted log-ratio of measured to emulated values, with its uncertainty."""

    scale: float
    batch_slope: float
    thread_slope: float
    noise: float  # residual standard deviation
    freedom: float  # its degrees of freedom
    covariance: tuple[float, ...]  # of the coefficients divided by noise², row by row

    def factor(self, batch: int, threads: int) -> tuple[float, float, float]:
        """Return the factor for an emulated value, and the ends of its 95 % prediction interval."""
        from scipy.stats import t

        x = _features(batch, threads)
        middle = float(x @ np.array([self.scale, self.batch_slope, self.thread_slope]))
        spread = self.noise * math.sqrt(1.0 + float(x @ np.reshape(self.covariance, (3, 3)) @ x))
        reach = float(t.ppf(0.975, self.freedom)) * spread
        return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Relative errors of leave-one-out cross-validation."""

    median: float
    worst: float
    points: int


@dataclass(frozen=True, slots=True)
class CorrectedEstimate:
    """A prediction of the corrected emulator for one batch, with 95 % prediction intervals."""

    latency_s: float
    low_s: float
    high_s: float
    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None


@dataclass(frozen=True, slots=True)
class EmulatorFit:
    """The emulator of one device corrected by measured points. Errors are None for a single point."""

    latency: Correction
    errors: HeldOutErrors | None
    points: tuple[BoardMeasurement, ...]
    energy: Correction | None = None
    energy_errors: HeldOutErrors | None = None

    def predict(
        self, batch: int, threads: int, emulated_s: float, emulated_j: float | None = None
    ) -> CorrectedEstimate:
        """Predict the cost on the board from the emulated cost at the same batch size and threads."""
        middle, low, high = (factor * emulated_s for factor in self.latency.factor(batch, threads))
        if self.energy is None or emulated_j is None:
            return CorrectedEstimate(middle, low, high)
        joules = (factor * emulated_j for factor in self.energy.factor(batch, threads))
        return CorrectedEstimate(middle, low, high, *joules)


def fit_emulator(
    points: Sequence[BoardMeasurement], emulated: Emulated, emulated_j: Emulated | None = None
) -> EmulatorFit:
    """Fit the correction to measured points.

    `emulated(batch, threads)` returns the emulated seconds and `emulated_j` the joules. Energy is fitted to the points
    that have it, if `emulated_j` is given. Raises DeviceError if there are no points.
    """
    if not points:
        raise DeviceError("expected at least one measured point, got none")
    times = [(point.batch, point.threads, point.latency_s, emulated(point.batch, point.threads)) for point in points]
    energies = [
        (point.batch, point.threads, point.energy_j, emulated_j(point.batch, point.threads))
        for point in points
        if point.energy_j is not None and emulated_j is not None
    ]
    return EmulatorFit(
        latency=_correction(times),
        errors=_cross_validate(times),
        points=tuple(points),
        energy=_correction(energies) if energies else None,
        energy_errors=_cross_validate(energies),
    )


_Row = tuple[int, int, float, float]  # batch, threads, measured, emulated


def _correction(rows: Sequence[_Row]) -> Correction:
    """Fit a ridge regression whose strength follows from the noise, estimated in turn (which scikit-learn does not)."""
    x = np.stack([_features(batch, threads) for batch, threads, _, _ in rows])
    y = np.log([measured / _positive(emulated) for _, _, measured, emulated in rows])
    noise, freedom = _PRIOR_NOISE, _PRIOR_POINTS
    for _ in range(50):
        covariance = np.linalg.inv(x.T @ x + np.diag((noise / _PRIOR_SPREAD) ** 2))
        coefficients = covariance @ x.T @ y
        effective = float(np.trace(x @ covariance @ x.T))  # effective number of parameters
        freedom = _PRIOR_POINTS + max(0.0, len(rows) - effective)
        squares = _PRIOR_POINTS * _PRIOR_NOISE**2 + float(np.sum((y - x @ coefficients) ** 2))
        before, noise = noise, math.sqrt(squares / freedom)
        if abs(noise - before) < 1e-9:
            break
    scale, batch_slope, thread_slope = map(float, coefficients)
    return Correction(scale, batch_slope, thread_slope, noise, freedom, tuple(map(float, covariance.ravel())))


def _cross_validate(rows: Sequence[_Row]) -> HeldOutErrors | None:
    if len(rows) < 2:
        return None
    errors = []
    for index, (batch, threads, measured, emulated) in enumerate(rows):
        others = [*rows[:index], *rows[index + 1 :]]
        predicted = _correction(others).factor(batch, threads)[0] * emulated
        errors.append(abs(predicted / measured - 1.0))
    return HeldOutErrors(median(errors), max(errors), len(errors))


def _features(batch: int, threads: int) -> NDArray[np.float64]:
    return np.array([1.0, math.log(batch), math.log(threads)])


def _positive(emulated: float) -> float:
    if not emulated > 0 or not math.isfinite(emulated):
        raise DeviceError(f"emulated values must be numbers above 0, got {emulated!r}")
    return emulated


def read_board_measurements(path: Path) -> tuple[BoardMeasurement, ...]:
    """Return the points of a CSV file with the columns batch, threads, latency_s and optionally energy_j.

    Latency and energy are of a whole batch. Raises DeviceError, which names the invalid line.
    """
    try:
        text = read_document(path).removeprefix("\ufeff")
        rows = list(csv.reader(text.splitlines(keepends=True)))
    except (OSError, ValueError, csv.Error) as error:
        raise DeviceError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    header = [name.strip() for name in rows[0]] if rows else []
    for name in header:
        if name not in _COLUMNS:
            raise DeviceError(f"{path}, line 1: {unknown('column', name, _COLUMNS)}")
    missing = [name for name in _COLUMNS[:3] if name not in header]
    if missing:
        raise DeviceError(
            f"{path}, line 1: expected the header batch,threads,latency_s[,energy_j]; {missing[0]} is missing"
        )
    points = [_point(header, row, f"{path}, line {line}") for line, row in enumerate(rows[1:], 2) if any(row)]
    if not points:
        raise DeviceError(f"{path} has a header but no measured points")
    return tuple(points)


def _point(header: list[str], row: list[str], where: str) -> BoardMeasurement:
    if len(row) != len(header):
        raise DeviceError(f"{where}: expected {len(header)} values as in the header, got {len(row)}")
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
        kind = "an integer of at least 1" if whole else "a number above 0"
        raise DeviceError(f"{where}: {name} must be {kind}, got {cell!r}")
    return value
