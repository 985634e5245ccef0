"""`onefold compile`: tune and compile the kernels of models for a device."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from onefold.cli.console import err, out, print_report
from onefold.cli.options import HomeOption, JsonOption
from onefold.device.catalog import HOST
from onefold.processes import handle_interrupts, restore_handlers
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import (
    CANDIDATES_PER_ROUND,
    DEFAULT_GRAPH_LEVEL,
    DEFAULT_STRATEGY,
    CompileBudget,
    CompileOptions,
    ScheduleCandidate,
    TuningRound,
)

BUDGET, TARGET, SEARCH = "Budget and goals", "Target", "Search"


def compile_models(
    models: Annotated[
        list[str], typer.Argument(help="Deployment folders, ONNX files, or workloads (FILE.py or a name)")
    ],
    device: Annotated[str, typer.Option(help="Device that will run the kernels")] = HOST,
    save: Annotated[Path | None, typer.Option(help="Create deployment folders here for models that have none")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust a deployment folder that this home did not write")
    ] = False,
    samples: Annotated[
        Path | None, typer.Option(help="An .npz file with 32 or more samples: also compare the int8 model")
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            help="Stop at this latency of the whole model, such as 2ms; once for all models or once for each",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit", rich_help_panel=BUDGET)] = None,
    candidates: Annotated[int | None, typer.Option(help="Limit of measured candidates", rich_help_panel=BUDGET)] = None,
    energy: Annotated[str | None, typer.Option(help="Energy limit, such as 50kJ", rich_help_panel=BUDGET)] = None,
    money: Annotated[
        float | None, typer.Option(help="Limit of the energy's cost; needs --price", rich_help_panel=BUDGET)
    ] = None,
    price: Annotated[str | None, typer.Option(help="Price of energy, such as 0.30/kWh", rich_help_panel=BUDGET)] = None,
    gain_drop: Annotated[
        float,
        typer.Option(
            help="Stop when the gain per second drops by this fraction in two consecutive rounds",
            rich_help_panel=BUDGET,
        ),
    ] = 0.25,
    early_stop: Annotated[
        bool, typer.Option(help="Stop at --gain-drop, or use the whole budget", rich_help_panel=BUDGET)
    ] = True,
    batch_size: Annotated[
        int, typer.Option(help="Batch size that the model is compiled for", rich_help_panel=TARGET)
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads that run the model (default: all cores)", rich_help_panel=TARGET)
    ] = None,
    processor: Annotated[
        str | None, typer.Option(help="LLVM name of the processor, such as cortex-a72", rich_help_panel=TARGET)
    ] = None,
    remote: Annotated[
        str | None, typer.Option(help="Address of a TVM server on the device: HOST:PORT", rich_help_panel=TARGET)
    ] = None,
    graph_level: Annotated[
        int, typer.Option(help="Graph optimization level, 0 to 4", rich_help_panel=SEARCH)
    ] = DEFAULT_GRAPH_LEVEL,
    compare_levels: Annotated[
        bool,
        typer.Option("--compare-levels", help="Also time the graph optimization levels", rich_help_panel=SEARCH),
    ] = False,
    strategy: Annotated[
        str,
        typer.Option(
            help="model-guided; to compare: random, evolutionary (MetaSchedule's own), genetic, annealing, "
            "clustering, grid",
            rich_help_panel=SEARCH,
        ),
    ] = DEFAULT_STRATEGY,
    cold_filter: Annotated[
        bool, typer.Option(help="Drop candidates that are predicted to be slow", rich_help_panel=SEARCH)
    ] = True,
    survey: Annotated[
        bool, typer.Option(help="Tune the operators that promise most, or all alike", rich_help_panel=SEARCH)
    ] = True,
    candidates_per_round: Annotated[
        int, typer.Option(help="Candidates of an operator in a round", rich_help_panel=SEARCH)
    ] = CANDIDATES_PER_ROUND,
    seed: Annotated[int, typer.Option(help="Seed of the search", rich_help_panel=SEARCH)] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune and compile the kernels of a model for a device, and report which runtime serves it fastest."""
    from onefold.kernels.api import compile_many

    if strategy != DEFAULT_STRATEGY:
        import onefold.baselines.kernel_strategies  # noqa: F401 - registers the strategies to compare with

    started = time.monotonic()
    budget = CompileBudget(
        minutes=minutes, energy=energy, money=money, price=price, candidates=candidates,
        gain_drop=gain_drop if early_stop else None,
    )  # fmt: skip
    options = CompileOptions(
        graph_level=graph_level, compare_levels=compare_levels, strategy=strategy, cold_filter=cold_filter,
        survey=survey, candidates_per_round=candidates_per_round, batch_size=batch_size, threads=threads,
        processor=processor, remote=remote, seed=seed,
    )  # fmt: skip
    try:
        with (
            _interruptible() as interrupts,
            nullcontext() if as_json else out.status("loading the models …") as status,
        ):
            results = compile_many(
                models, device=device, goals=goal or [], budget=budget, options=options, samples=samples, save=save,
                trust=trust, home=home, on_event=_progress(status, started, interrupts),
            )  # fmt: skip
    except KeyboardInterrupt:
        err.print("interrupted; all measurements are stored: run the same command to resume")
        raise typer.Exit(130) from None
    from onefold.report.kernels import KernelReport

    if as_json:
        print_report(KernelReport(results), as_json)
        return
    for result in results:
        print_report(KernelReport([result]))
        if result.folder:
            out.print(f"library  {result.folder}", soft_wrap=True)
        else:
            out.print("nothing written: give --save FOLDER to keep the library", soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Record signals: raised inside TVM, a KeyboardInterrupt would be taken for a failed candidate."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        if callable(handler := previous.get(signal.Signals(number))):
            handler(number, frame)
        raise KeyboardInterrupt

    previous = handle_interrupts(interrupt)
    try:
        yield interrupts
    finally:
        restore_handlers(previous)


def _progress(status: Any, started: float, interrupts: list[int]) -> Callable[[Any], None]:
    """Return a callback that shows events, and raises KeyboardInterrupt after Ctrl-C."""
    tried = failed = 0
    latencies: dict[str, float] = {}

    def on_event(event: Any) -> None:
        nonlocal tried, failed
        if interrupts:
            raise KeyboardInterrupt
        if status is None:
            return
        elapsed = quantities.duration(time.monotonic() - started)
        if isinstance(event, ScheduleCandidate):
            tried, failed = tried + 1, failed + (event.failure is not None)
        elif isinstance(event, TuningRound):
            latencies[event.model] = event.latency_s
            out.print(f"{elapsed}  {_round_line(event)}", soft_wrap=True, highlight=False)
        else:
            models = ", ".join(f"{name} {quantities.duration(latency)}" for name, latency in latencies.items())
            progress = f"  [{models}; {quantities.count(tried, 'candidate')}, {failed} failed]" if latencies else ""
            status.update(f"{elapsed}  {event} …{progress}".replace("[", "\\["))

    return on_event


def _round_line(ended: TuningRound) -> str:
    operators = sorted(ended.operators, key=lambda state: -state.time_s)
    total = sum(state.time_s for state in operators) or 1.0
    shares = ", ".join(
        f"{state.operator.name} {quantities.share(state.time_s / total)}" for state in operators[:3] if state.best_s
    )
    filtered, failed = (sum(getattr(state, name) for state in operators) for name in ("filtered", "failed"))
    suspended = sum(state.suspended for state in operators)
    joules = ended.spent.energy.joules
    cost = "" if joules is None else f", {quantities.joules(joules)} ({ended.spent.source})"
    return (
        f"{ended.model} round {ended.number}: {quantities.duration(ended.latency_s)}; "
        f"{quantities.count(ended.tried, 'candidate')}, {filtered} filtered, {failed} failed; "
        f"{suspended} of {len(operators)} operators suspended"
        f"{'; most time: ' + shares if shares else ''}{cost}"
    )
