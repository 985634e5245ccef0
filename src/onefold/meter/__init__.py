"""Measure the time, energy and memory of a window of work."""

from __future__ import annotations

from onefold.meter.clock import ClockMeter
from onefold.meter.combined import CombinedMeter
from onefold.meter.meter import Meter, Window
from onefold.meter.modelled import ModelledMeter
from onefold.meter.nvml import NvmlMeter
from onefold.meter.rapl import RaplMeter
from onefold.vocabulary.errors import MissingExtra
from onefold.vocabulary.log import log_of

__all__ = [
    "ClockMeter",
    "CombinedMeter",
    "Meter",
    "ModelledMeter",
    "NvmlMeter",
    "RaplMeter",
    "Window",
    "choose",
]

_log = log_of(__name__)


def choose(accelerator: str = "cpu") -> Meter:
    """Return the best meter that works here for an accelerator (`cpu`, `cuda`, `cuda:1`, …).

    On `cpu`: the processor's energy counters (`rapl`), or else a model (`modelled`).

    On `cuda`: the board's counter with the processor's (`rapl+nvml`), or the board's alone (`nvml`), whose label shows
    that the processor is not included. Without the board's counter energy is `unavailable` even if the processor's is
    known: the GPU draws most of the power, and the rest would pass for the whole. The same holds on other accelerators.
    """
    rapl = RaplMeter()
    if rapl.reason:
        _log.info("processor energy is not measured: %s", rapl.reason)
    kind, _, index = accelerator.partition(":")
    if kind == "cpu":
        return ModelledMeter() if rapl.reason else rapl
    board = _board(int(index or 0)) if kind == "cuda" else None
    if board is None:
        return ClockMeter()
    return board if rapl.reason else CombinedMeter(rapl, board)


def _board(device: int) -> Meter | None:
    try:
        board = NvmlMeter(device)
    except MissingExtra as error:
        _log.info("GPU energy is not measured: %s", error)
        return None
    if board.reason:
        _log.info("GPU energy is not measured: %s", board.reason)
        return None
    return board
