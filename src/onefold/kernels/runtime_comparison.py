"""Times the runtimes that can serve a model: TVM, onnxruntime, and onnxruntime with the int8 model.

Idle threads of a compiled model spin. Those of onnxruntime sleep, which leaves the cores to other programs but takes
longer to wake up; with several threads it is timed both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.device import PRECISE, Session
from onefold.device.catalog import HOST
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.kernel_library import INT8, MODEL, ORT, ORT_FORMS, TVM
from onefold.kernels.source_models import SourceModel
from onefold.processes import available_cores
from onefold.serving.export import samples_beside
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.errors import ModelError, OnefoldError
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

TURNS = 3  # of which the minimum counts: contention only ever increases a latency
CLOSE, EXTRA_TURNS = 1.2, 5  # runtimes within this factor of the fastest are timed more often
MIN_AGREEMENT = 0.99  # share of samples on which int8 must agree with the model to be recommended
EMULATED = "emulated on this machine"


@dataclass(frozen=True)
class RuntimeComparison:
    """The latencies of all runtimes, fastest first."""

    runtimes: tuple[RuntimeLatency, ...]
    recommended: str
    int8: Path | None = None  # the int8 model, if it could be quantized


Timer = Callable[[], float]


def compare_runtimes(
    compiled: Timer | None, runner: CandidateRunner, source: SourceModel, session: Session | None, folder: Path,
    point: ServingPoint, note: str = "",
) -> RuntimeComparison:  # fmt: skip
    """Time all runtimes in turns; int8 only if there are enough real samples to calibrate with.

    Args:
        compiled: Times the library; None if TVM cannot compile the model.
        runner: Times onnxruntime on this machine. As for the library, the call that serves is timed, the one of
            `deploy.load(folder)(inputs)`.
        source: The model.
        session: Emulates onnxruntime on the device, if the library is on a remote one.
        folder: For the int8 model, which is timed but not recommended if it disagrees with the model.
        point: The serving point.
        note: What there is to say about the compiled model.
    """
    int8, agreement = _quantize(source, folder)
    files = {MODEL: source.file} | ({INT8: int8} if int8 is not None else {})
    timers: dict[str, Timer] = {} if compiled is None else {TVM: compiled}
    for name, (form, waiting) in ORT_FORMS.items():
        if form in files and (waiting == point.waiting or 1 < point.threads <= len(available_cores())):
            waiting_point = replace(point, waiting=waiting)
            timers[name] = (
                partial(_time_served, runner, files[form], waiting_point, source)
                if session is None
                else partial(_time_in_session, session, files[form], waiting_point)
            )
    quantized = {name for name in timers if name != TVM and ORT_FORMS[name][0] == INT8}
    latencies = _time_in_turns(timers, quantized if agreement < MIN_AGREEMENT else set())
    is_emulated = session is not None and session.device.name != HOST
    runtimes = []
    for name, values in latencies.items():
        notes = [EMULATED] if is_emulated and name != TVM else []
        notes += [note] if note and name == TVM else []
        notes += [f"agrees with the model on {agreement:.1%} of the samples"] if name in quantized else []
        runtimes.append(RuntimeLatency(name, min(values), point.threads, "; ".join(notes)))
    runtimes.sort(key=lambda runtime: runtime.latency_s)
    eligible = [runtime.name for runtime in runtimes if runtime.name not in quantized or agreement >= MIN_AGREEMENT]
    return RuntimeComparison(tuple(runtimes), eligible[0], int8)


def _time_in_turns(timers: Mapping[str, Timer], ineligible: Collection[str]) -> dict[str, list[float]]:
    """Return the latencies of all runtimes; a runtime that fails is left out, unless it serves the model as it is."""
    latencies: dict[str, list[float]] = {name: [] for name in timers}
    for turn in range(TURNS + EXTRA_TURNS):
        eligible = {name: values for name, values in latencies.items() if name not in ineligible}
        for name in list(latencies) if turn < TURNS else contenders(eligible):
            try:
                latencies[name].append(timers[name]())
            except ModelError:
                if name == ORT:
                    raise
                del latencies[name]
    return latencies


def _time_served(runner: CandidateRunner, file: Path, point: ServingPoint, source: SourceModel) -> float:
    opener = partial(ServedModel, file, point)
    return median(runner.time_served(opener, source.inputs, is_compiled=False).latencies)


def _time_in_session(session: Session, file: Path, point: ServingPoint) -> float:
    samples = samples_beside(file)
    session.prepare(file, samples if samples.is_file() else None, [point])
    return session.serve(file, point, PRECISE).latency_s


def contenders(latencies: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the runtimes within CLOSE of the fastest; none if there is a clear winner."""
    fastest = min(map(min, latencies.values()))
    close = [name for name, values in latencies.items() if min(values) <= CLOSE * fastest]
    return close if len(close) > 1 else []


def _quantize(source: SourceModel, folder: Path) -> tuple[Path | None, float]:
    """Return the int8 model and its agreement with the model; None if it cannot be quantized."""
    if source.calibration is None:
        return None, 0.0
    target = folder / f"{source.name}-int8"
    target.mkdir()
    try:
        builder = OnnxVariantBuilder(source.file, target, source.calibration, lambda _: None)
        variant = builder.build([Recipe(precision="int8")])[-1]
    except OnefoldError:
        return None, 0.0
    return variant.file, variant.metrics[builder.metric]
