"""Ways to serve a model, timed beside each other: compiled, by onnxruntime, and by onnxruntime with integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onefold.candidates import Runtime
from onefold.device import CAREFUL, Session
from onefold.errors import OnefoldError
from onefold.inference.export import samples_beside
from onefold.kernels.library import TVM
from onefold.kernels.whole import WholeModel
from onefold.serving import ServingPoint
from onefold.study.graphs import GraphWorkshop
from onefold.variants import Recipe

ORT, ORT_INT8 = "onnxruntime", "onnxruntime int8"
PASSES = 3  # in turns, of which the best counts: neighbours on the machine only ever make things slower
AGREES = 0.99  # of the answers that integers must leave as they were


@dataclass(frozen=True)
class Race:
    """The runtimes, fastest first; `int8` is the model with integers where that was made."""

    runtimes: tuple[Runtime, ...]
    recommended: str
    int8: Path | None = None


def race(
    whole: WholeModel,
    library: Path,
    model: Path,
    session: Session,
    folder: Path,
    point: ServingPoint,
    many: Path | None = None,
) -> Race:
    """Times all of them in turns; with integers only where there are many real inputs to quantise with.

    What answers otherwise than the model is timed and not recommended.
    """
    samples = samples_beside(model)
    int8, agreement = _with_integers(model, folder, many)
    files = {ORT: model} | ({ORT_INT8: int8} if int8 is not None else {})
    ways: dict[str, Callable[[], float]] = {TVM: lambda: whole.timed(library).latency_s}
    for name, file in files.items():
        ways[name] = lambda file=file: _served(session, file, samples, point)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(PASSES):
        for name, way in ways.items():
            times[name].append(way())
    notes = {ORT_INT8: f"answers as the model does for {agreement:.1%} of the samples"} if int8 is not None else {}
    found = [Runtime(name, min(each), point.threads, notes.get(name, "")) for name, each in times.items()]
    found.sort(key=lambda one: one.latency_s)
    allowed = [one for one in found if one.name != ORT_INT8 or agreement >= AGREES]
    return Race(tuple(found), allowed[0].name, int8)


def _served(session: Session, model: Path, samples: Path, point: ServingPoint) -> float:
    session.prepare(model, samples if samples.is_file() else None, [point])
    return session.serve(model, point, CAREFUL).latency_s


def _with_integers(model: Path, folder: Path, many: Path | None) -> tuple[Path | None, float]:
    """The model with integers and how often that answers the same; nothing where it cannot be made."""
    if many is None:
        return None, 0.0
    try:
        place = folder / "int8"
        place.mkdir(exist_ok=True)
        workshop = GraphWorkshop(model, place, many, lambda _: None)
        made = workshop.make([Recipe(precision="int8")])[-1]
    except OnefoldError:
        return None, 0.0
    return made.file, made.metrics[workshop.metric]
