"""Times the runtimes that can serve a model: TVM, onnxruntime, also with the int8 model, and those it is converted for.

Idle threads of a compiled model spin. Those of onnxruntime sleep, which leaves the cores to other programs but takes
longer to wake up; with several threads it is timed both ways.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onefold.compression.onnx_builder import OnnxVariantBuilder
from onefold.device import PRECISE, Session
from onefold.device.catalog import HOST
from onefold.kernels.kernel_library import INT8, MODEL, ORT, ORT_FORMS, TVM
from onefold.kernels.source_models import SourceModel
from onefold.processes import available_cores
from onefold.runtimes.forms import read_forms
from onefold.runtimes.pytorch import PytorchRuntime
from onefold.runtimes.race import Timer, call_timer, time_in_turns
from onefold.serving.export import samples_beside
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.errors import OnefoldError
from onefold.vocabulary.kernels import RuntimeLatency
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

MIN_AGREEMENT = 0.99  # share of samples on which int8 must agree with the model to be recommended
EMULATED = "emulated on this machine"


@dataclass(frozen=True)
class RuntimeComparison:
    """The latencies of all runtimes, fastest first."""

    runtimes: tuple[RuntimeLatency, ...]
    recommended: str
    int8: Path | None = None  # the int8 model, if it could be quantized


def compare_runtimes(
    compiled: Timer | None, source: SourceModel, session: Session | None, folder: Path,
    point: ServingPoint, note: str = "",
) -> RuntimeComparison:  # fmt: skip
    """Time all runtimes in turns; int8 only if there are enough real samples to calibrate with.

    Args:
        compiled: Times the library; None if TVM cannot compile the model.
        source: The model. Of runtimes on this machine, the call that serves is timed: `deploy.load(folder)(inputs)`.
        session: Emulates them on the device, if the library is on a remote one.
        folder: For the int8 model, which is timed but not recommended if it disagrees with the model.
        point: The serving point.
        note: What there is to say about the compiled model.
    """
    int8, agreement = _quantize(source, folder)
    files = {MODEL: source.file} | ({INT8: int8} if int8 is not None else {})
    served = {
        name: (files[form], replace(point, waiting=waiting))
        for name, (form, waiting) in ORT_FORMS.items()
        if form in files and (waiting == point.waiting or 1 < point.threads <= len(available_cores()))
    }
    served |= {
        name: (source.file, replace(point, runtime=name))
        for name in read_forms(source.file)
        if name != PytorchRuntime.name or source.is_trusted  # its programs can read and write files
    }
    quantized = {name for name in served if name in ORT_FORMS and ORT_FORMS[name][0] == INT8}
    with ExitStack() as stack:
        timers: dict[str, Timer] = {} if compiled is None else {TVM: compiled}
        for name, (file, each) in served.items():
            timers[name] = (
                call_timer(stack, partial(ServedModel, file, each), source.inputs)
                if session is None
                else partial(_time_in_session, session, file, each)
            )
        ineligible = quantized if agreement < MIN_AGREEMENT else set()
        latencies = time_in_turns(timers, reference=ORT, ineligible=ineligible)
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


def _time_in_session(session: Session, file: Path, point: ServingPoint) -> float:
    samples = samples_beside(file)
    session.prepare(file, samples if samples.is_file() else None, [point])
    return session.serve(file, point, PRECISE).latency_s


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
