"""`onefold compile`: kernels for a device, tuned within a budget."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.console import err, out, print_report
from onefold.cli.options import HomeOption, JsonOption
from onefold.device.catalogue import HOST
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult, ScheduleCandidate, TuningRound


def compile_models(
    models: Annotated[
        list[str], typer.Argument(help="Deployment folders, ONNX files, or workloads (FILE.py or a name)")
    ],
    device: Annotated[str, typer.Option(help="Where the kernels will run")] = HOST,
    goal: Annotated[
        list[str] | None,
        typer.Option(help="Stop at this latency of the whole model, such as 2ms; given once, or once for each model"),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes")] = None,
    energy: Annotated[str | None, typer.Option(help="Stop after so much energy, such as 50kJ")] = None,
    price: Annotated[str | None, typer.Option(help="Of energy, such as 0.30/kWh")] = None,
    money: Annotated[float | None, typer.Option(help="Stop after so much money; needs --price")] = None,
    candidates: Annotated[int | None, typer.Option(help="Stop after so many measured candidates")] = None,
    falls: Annotated[float, typer.Option(help="Stop when the gain per second falls by this share, twice")] = -0.25,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Use the whole budget, also when it no longer pays")
    ] = False,
    level: Annotated[int, typer.Option(help="Of graph optimisation: 0 to 4")] = 3,
    levels: Annotated[bool, typer.Option("--levels", help="Also compare the levels of graph optimisation")] = False,
    strategy: Annotated[
        str, typer.Option(help="breeding, evolutionary, random, grid, genetic, annealing, clustering")
    ] = "breeding",
    is_filtering: Annotated[bool, typer.Option("--filter/--no-filter", help="Drop what looks cold")] = True,
    is_surveying: Annotated[bool, typer.Option("--survey/--no-survey", help="Go where the gain is")] = True,
    batch: Annotated[int, typer.Option(help="Candidates of an operator in a round")] = 8,
    batch_size: Annotated[int, typer.Option(help="Samples that the compiled model takes at a time")] = 1,
    threads: Annotated[int | None, typer.Option(help="That serve the model (default: all cores)")] = None,
    processor: Annotated[str | None, typer.Option(help="As LLVM calls it, such as cortex-a72")] = None,
    remote: Annotated[str | None, typer.Option(help="A TVM server on the device: HOST:PORT")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="An .npz with 32 or more real inputs: integers become one of the runtimes")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Make deployment folders here, of models that are in none")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same candidates")] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile the kernels of a model for a device, and say which runtime serves it fastest."""
    from onefold.kernels.api import compile as make

    began = time.monotonic()
    every_goal = goal[0] if goal and len(goal) == 1 else goal or None
    try:
        with _interruptible() as asked, nullcontext() if as_json else out.status("opening the models …") as status:
            found: CompileResult | list[CompileResult] = make(
                models, device=device, goal=every_goal, minutes=minutes, energy=energy, price=price, money=money,
                candidates=candidates, falls=None if to_the_end else falls, level=level, levels=levels,
                strategy=strategy, filter=is_filtering, survey=is_surveying, batch=batch, batch_size=batch_size,
                threads=threads, processor=processor, remote=remote, samples=samples, save=save, home=home, seed=seed,
                tell=_teller(status, began, asked),
            )  # fmt: skip
    except KeyboardInterrupt:
        err.print("interrupted; what was measured is kept: the same command goes on from here")
        raise typer.Exit(130) from None
    from onefold.report.kernels import KernelReport

    every = found if isinstance(found, list) else [found]
    if as_json:
        print_report(KernelReport(every), as_json)
        return
    for one in every:
        print_report(KernelReport([one]))
        if one.folder:
            out.print(f"library  {one.folder}", soft_wrap=True)
        else:
            out.print("nothing was written: give --save FOLDER to keep the library", soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Notes that somebody pressed Ctrl-C: raised inside the compiler, an interruption passes for a failed candidate."""
    asked: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _teller(status: Any, began: float, asked: list[int]) -> Any:
    """Shows what is going on; ends it where that was asked for."""
    tried = failed = 0
    latency: dict[str, float] = {}

    def tell(what: Any) -> None:
        nonlocal tried, failed
        if asked:
            raise KeyboardInterrupt
        if status is None:
            return
        at = quantities.duration(time.monotonic() - began)
        if isinstance(what, ScheduleCandidate):
            tried, failed = tried + 1, failed + (what.failure is not None)
        elif isinstance(what, TuningRound):
            latency[what.model] = what.latency_s
            out.print(f"{at}  {_round(what)}", soft_wrap=True, highlight=False)
        else:
            so_far = ", ".join(f"{name} {quantities.duration(value)}" for name, value in latency.items())
            known = f"  [{so_far}; {tried} candidates, {failed} failed]" if latency else ""
            status.update(f"{at}  {what} …{known}".replace("[", "\\["))

    return tell


def _round(what: TuningRound) -> str:
    operators = sorted(what.operators, key=lambda one: -one.time_s)
    total = sum(one.time_s for one in operators) or 1.0
    shares = ", ".join(f"{one.operator.name} {one.time_s / total:.0%}" for one in operators[:3] if one.best_s)
    filtered, failed = (sum(getattr(one, name) for one in operators) for name in ("filtered", "failed"))
    suspended = sum(one.suspended for one in operators)
    joules = what.spent.energy.joules
    cost = "" if joules is None else f", {quantities.joules(joules)} ({what.spent.source})"
    return (
        f"{what.model} round {what.number}: {quantities.duration(what.latency_s)}; {what.tried} candidates, "
        f"{filtered} filtered, {failed} failed; {suspended} of {len(operators)} operators put aside"
        f"{'; most time: ' + shares if shares else ''}{cost}"
    )
