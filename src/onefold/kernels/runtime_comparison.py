"""Ways to serve a model, timed beside each other: compiled, by onnxruntime, and by onnxruntime with integers.

Threads of a compiled model spin while they wait for work. Those of onnxruntime sleep, which leaves the cores to others
and takes longer to wake up; with several threads it is timed both ways.
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

PASSES = 3  # in turns, of which the best counts: neighbours on the machine only ever make things slower
CLOSE, MORE_PASSES = 1.2, 5  # those that are no further behind the fastest are timed more often
AGREES = 0.99  # of the answers that integers must leave as they were
EMULATED = "emulated: this machine in the device's place"


@dataclass(frozen=True)
class RuntimeComparison:
    """The runtimes, fastest first; `int8` is the model with integers where that was made."""

    runtimes: tuple[RuntimeLatency, ...]
    recommended: str
    int8: Path | None = None


def race(
    whole: ModelCompiler, library: Path, opened: SourceModel, session: Session, folder: Path, point: ServingPoint
) -> RuntimeComparison:
    """Times all of them in turns; with integers only where there are many real inputs to quantise with.

    What answers otherwise than the model is timed and not recommended.
    """
    samples = samples_beside(opened.file)
    int8, agreement = _with_integers(opened, folder)
    files = {MODEL: opened.file} | ({INT8: int8} if int8 is not None else {})
    emulated: set[str] = set()

    def serve(name: str) -> float:
        form, waiting = ORT_FORMS[name]
        how = replace(point, waiting=waiting)
        session.prepare(files[form], samples if samples.is_file() else None, [how])
        served = session.serve(files[form], how, PRECISE)
        if served.source is LatencySource.EMULATED:
            emulated.add(name)
        return served.latency_s

    ways: dict[str, Callable[[], float]] = {TVM: lambda: whole.timed(library).latency_s}
    for name, (form, waiting) in ORT_FORMS.items():
        if form in files and (waiting == point.waiting or 1 < point.threads <= session.threads):
            ways[name] = partial(serve, name)
    quantised = {name for name in ways if name != TVM and ORT_FORMS[name][0] == INT8}
    allowed = [name for name in ways if name not in quantised or agreement >= AGREES]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(PASSES + MORE_PASSES):
        for name in ways if turn < PASSES else still_close({name: times[name] for name in allowed}):
            times[name].append(ways[name]())
    notes = {name: [EMULATED] if name in emulated else [] for name in ways}
    for name in quantised:
        notes[name].append(f"answers as the model does for {agreement:.1%} of the samples")
    found = [RuntimeLatency(name, min(each), point.threads, "; ".join(notes[name])) for name, each in times.items()]
    found.sort(key=lambda one: one.latency_s)
    return RuntimeComparison(tuple(found), next(one.name for one in found if one.name in allowed), int8)


def still_close(times: Mapping[str, Sequence[float]]) -> list[str]:
    """The runtimes among which another look may decide; none where one is clearly the fastest."""
    fastest = min(map(min, times.values()))
    near = [name for name, each in times.items() if min(each) <= CLOSE * fastest]
    return near if len(near) > 1 else []


def _with_integers(opened: SourceModel, folder: Path) -> tuple[Path | None, float]:
    """The model with integers and how often that answers the same; nothing where it cannot be made."""
    if opened.many is None:
        return None, 0.0
    place = folder / f"{opened.name}-int8"
    place.mkdir()
    try:
        workshop = OnnxVariantBuilder(opened.file, place, opened.many, lambda _: None)
        made = workshop.build([Recipe(precision="int8")])[-1]
    except OnefoldError:
        return None, 0.0
    return made.file, made.metrics[workshop.metric]
