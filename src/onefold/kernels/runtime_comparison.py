"""Times the runtimes that can serve a model: TVM, onnxruntime, and onnxruntime with the int8 model.

Idle threads of a compiled model spin. Those of onnxruntime sleep, which leaves the cores to other programs but takes
longer to wake up; with several threads it is timed both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.device import PRECISE, Session
from onefold.kernels.kernel_library import INT8, MODEL, ORT_FORMS, TVM
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.source_models import SourceModel
from onefold.serving.export import samples_beside
from onefold.vocabulary.errors import OnefoldError
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.serving import LatencySource, ServingPoint
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


def compare_runtimes(
    compiler: ModelCompiler, library: Path, source: SourceModel, session: Session, folder: Path, point: ServingPoint
) -> RuntimeComparison:
    """Time all runtimes in turns; int8 only if there are enough real samples to calibrate with.

    An int8 model that disagrees with the model is timed but not recommended.
    """
    samples = samples_beside(source.file)
    int8, agreement = _quantize(source, folder)
    files = {MODEL: source.file} | ({INT8: int8} if int8 is not None else {})
    emulated: set[str] = set()

    def time_onnxruntime(name: str) -> float:
        form, waiting = ORT_FORMS[name]
        waiting_point = replace(point, waiting=waiting)
        session.prepare(files[form], samples if samples.is_file() else None, [waiting_point])
        served = session.serve(files[form], waiting_point, PRECISE)
        if served.source is LatencySource.EMULATED:
            emulated.add(name)
        return served.latency_s

    timers: dict[str, Callable[[], float]] = {TVM: lambda: compiler.time_library(library).latency_s}
    for name, (form, waiting) in ORT_FORMS.items():
        if form in files and (waiting == point.waiting or 1 < point.threads <= session.threads):
            timers[name] = partial(time_onnxruntime, name)
    quantized = {name for name in timers if name != TVM and ORT_FORMS[name][0] == INT8}
    eligible = [name for name in timers if name not in quantized or agreement >= MIN_AGREEMENT]
    latencies: dict[str, list[float]] = {name: [] for name in timers}
    for turn in range(TURNS + EXTRA_TURNS):
        for name in timers if turn < TURNS else contenders({name: latencies[name] for name in eligible}):
            latencies[name].append(timers[name]())
    notes = {name: [EMULATED] if name in emulated else [] for name in timers}
    for name in quantized:
        notes[name].append(f"agrees with the model on {agreement:.1%} of the samples")
    runtimes = [
        RuntimeLatency(name, min(times), point.threads, "; ".join(notes[name])) for name, times in latencies.items()
    ]
    runtimes.sort(key=lambda runtime: runtime.latency_s)
    recommended = next(runtime.name for runtime in runtimes if runtime.name in eligible)
    return RuntimeComparison(tuple(runtimes), recommended, int8)


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
