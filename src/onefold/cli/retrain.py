"""`onefold retrain`: retrain a deployed model on new data, within a memory limit and a time window."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.cli.command_group import MainProgram
from onefold.cli.console import err, out, print_report
from onefold.cli.interruption import interrupt
from onefold.cli.options import HomeOption, JsonOption, TrustOption
from onefold.cli.window_deadline import WindowDeadline
from onefold.device.catalog import HOST
from onefold.vocabulary.quantities import duration, parse_seconds
from onefold.vocabulary.retraining import MicroWindow, PhaseStarted, Reaction, RetrainingEvent

if TYPE_CHECKING:
    from onefold.retraining.control import RetrainingControl

PLANNING = "Planning"


def retrain(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="Model folder that onefold tune or onefold train saved")],
    data: Annotated[
        Path,
        typer.Option(
            help="New data: a folder with inputs.npy and, unless it has no labels, targets.npy, or an .npz file"
        ),
    ],
    memory: Annotated[
        str | None, typer.Option(help="Limit of the peak memory, such as 500MB (default: the free memory)")
    ] = None,
    window: Annotated[str, typer.Option(help="Time limit, such as 90s, 10m or 1h")] = "10m",
    device: Annotated[
        str, typer.Option(help="host, cuda, or a device whose cores and memory become the limits")
    ] = HOST,
    metric: Annotated[
        str | None, typer.Option(help="Validation metric that decides which model is better (default: accuracy)")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the new model here instead of updating the model folder in place")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plans that fit the limits, without retraining")
    ] = False,
    trust: TrustOption = False,
    control: Annotated[
        Path | None,
        typer.Option(
            help='File that changes the limits while the retraining runs: {"window": "5m", "memory": "400MB"}, or ends '
            'it: {"stop": true}',
            rich_help_panel=PLANNING,
        ),
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adam, sgd, or auto for both", rich_help_panel=PLANNING)] = "auto",
    alpha: Annotated[
        str, typer.Option(help="Weight of gain against speed: 0 to 1, or auto", rich_help_panel=PLANNING)
    ] = "0.9",
    rules: Annotated[
        Path | None, typer.Option(help="TOML file with rules of your own", rich_help_panel=PLANNING)
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="onefold, or a baseline: static, dgc, dga, sage, bayesian, oom-retry, last-layer, fixed",
            rich_help_panel=PLANNING,
        ),
    ] = "onefold",
    seed: Annotated[int, typer.Option(help="Seed of the batch order", rich_help_panel=PLANNING)] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retrain a deployed model on new data, within a memory limit and a time window.

    The model is replaced only if the new one is better on validation data. SIGTERM ends the retraining as if its window
    were over; Ctrl-C ends it without a change.
    """
    is_whole_process = isinstance(context.obj, MainProgram) and context.obj.is_whole_process
    started_at = _process_start() if is_whole_process else time.monotonic()
    from onefold.retraining.control import RetrainingControl
    from onefold.retraining.time_window import TimeWindow

    controls = RetrainingControl(control)
    deadline = WindowDeadline(TimeWindow(parse_seconds(window), started_at, control=controls))
    try:
        with (
            nullcontext() if plan_only else _stopped_by_sigterm(controls),
            deadline.armed() if is_whole_process else nullcontext(),
            nullcontext() if as_json else out.status("loading the model …") as status,
        ):
            from onefold.retraining.api import plan_retraining
            from onefold.retraining.api import retrain as retrain_model
            from onefold.retraining.options import RetrainingOptions

            if strategy != "onefold":
                import onefold.baselines.retraining  # noqa: F401 - registers the baselines

            options = RetrainingOptions(
                strategy=strategy, rules=rules, alpha=alpha, optimizer=optimizer, metric=metric, seed=seed, home=home,
                control=controls, started_at=started_at,
            )  # fmt: skip
            show_progress = _progress_display(status, started_at)

            def on_event(event: RetrainingEvent) -> None:
                deadline.on_event(event)
                show_progress(event)

            arguments: dict[str, Any] = dict(
                memory=memory, window=window, device=device, trust=trust, options=options, on_event=on_event
            )
            if plan_only:
                feasible = plan_retraining(model, data, **arguments)
            else:
                result = retrain_model(model, data, save=save, **arguments)
    except KeyboardInterrupt:
        err.print("interrupted; the model is unchanged")
        raise typer.Exit(130) from None
    from onefold.report.retraining import RetrainingReport, as_plans_json, as_plans_text

    if plan_only:
        as_text = as_plans_text(feasible.plans, feasible.limits)
        out.out(json.dumps(as_plans_json(feasible.plans, feasible.limits)) if as_json else as_text)
        return
    print_report(RetrainingReport(result.summary), as_json)
    if as_json:
        return
    if result.summary.kept_new:
        out.print(f"model   {result.folder}", soft_wrap=True)
    out.print(f"report  {result.report}", soft_wrap=True)


@contextmanager
def _stopped_by_sigterm(control: RetrainingControl) -> Iterator[None]:
    """Let SIGTERM end the retraining with its best model so far; a second one interrupts it."""

    def stop(number: int, frame: FrameType | None) -> None:
        if control.is_stopped:
            interrupt(number, frame)
        control.stop()

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _progress_display(status: Any, started_at: float) -> Callable[[RetrainingEvent], None]:
    """Return a callback that shows events in the status line, and reactions above it."""

    def on_event(event: RetrainingEvent) -> None:
        if status is None:
            return
        elapsed = duration(time.monotonic() - started_at)
        if isinstance(event, PhaseStarted):
            status.update(f"{elapsed}  {event.phase} …")
        elif isinstance(event, Reaction):
            out.print(f"{elapsed}  {event.rule}: {event.said}", soft_wrap=True, highlight=False)
        elif isinstance(event, MicroWindow):
            score = "" if event.score is None else f", score {event.score:.4f}"
            status.update(f"{elapsed}  micro-window {event.number}: {event.plan}, loss {event.loss:.4f}{score}")
        else:
            status.update(f"{elapsed}  {len(event.plans)} plans fit; trying them …")

    return on_event


def _process_start() -> float:
    """Return when this process started, on the monotonic clock: the window includes the interpreter's start."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, age_s)
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux
        return now
