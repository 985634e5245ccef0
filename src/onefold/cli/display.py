"""The progress of a running study: a live panel on a terminal, lines in a log, JSON lines for programs."""

from __future__ import annotations

import json
import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onefold.report.phrases import energy_with_source
from onefold.study.events import (
    KnobsTuned,
    ParallelismMeasured,
    RungFinished,
    RungStarted,
    RunningRung,
    ServingMeasured,
    StageStarted,
    StudyEnded,
    StudyEvent,
    StudyProgress,
    StudyStarted,
    Tick,
    TrialFailed,
    TrialForked,
    TrialPromoted,
    TrialRetried,
)
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import count, duration, metric, number, remaining, settings, share
from onefold.vocabulary.records import Energy, Metrics

# Events that stay on the terminal above the live panel.
LASTING = (StudyStarted, ParallelismMeasured, KnobsTuned, TrialFailed, TrialRetried)


class Display(Protocol):
    """Shows the events of a study; a context manager that opens and closes the display."""

    def __call__(self, event: StudyEvent) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *exc: object) -> None: ...


class LiveDisplay:
    """A panel that is redrawn four times a second, below a log of the important events."""

    def __init__(self, console: Console, objective: Objective) -> None:
        self._console = console
        self._objective = objective
        self._progress: StudyProgress | None = None
        self._stage = ""  # the current step before or after the trials
        self._updated = time.monotonic()
        self._live = Live(console=console, get_renderable=self.panel, refresh_per_second=4, transient=True)

    def __call__(self, event: StudyEvent) -> None:
        self._stage = event.message if isinstance(event, StageStarted) else ""
        self._progress, self._updated = event.progress(), time.monotonic()
        line = sentence(event, self._objective)
        if line and isinstance(event, LASTING):
            self._console.print(line)

    def panel(self) -> Group:
        """Return the panel as of now."""
        progress = self._progress
        if self._stage:
            return Group(Text(f"{self._stage} …", style="dim"))
        if progress is None or not progress.trials_started:
            return Group(Text("starting the workers …", style="dim"))
        return Group(self._summary(progress), self._best(progress), _running_rungs(progress))

    def _summary(self, progress: StudyProgress) -> Table:
        elapsed_s, left_s = progress.elapsed_s + time.monotonic() - self._updated, progress.left_s
        row = Table.grid(padding=(0, 2))
        row.add_row(
            ProgressBar(total=1.0, completed=elapsed_s / (elapsed_s + left_s) if left_s is not None else 0.0, width=24),
            f"{progress.trials_started}/{progress.trials_planned} trials",
            Text(f"{progress.trials_failed} failed" if progress.trials_failed else "", style="red"),
            f"{duration(round(elapsed_s, 1))} elapsed" + (f", {remaining(left_s)} left" if left_s is not None else ""),
            energy_with_source(Energy(progress.energy_j, progress.energy_source)),
        )
        return row

    def _best(self, progress: StudyProgress) -> Text:
        if progress.best_trial is None:
            return Text("no result yet", style="dim")
        return Text.assemble(
            ("best ", "dim"),
            (results(progress.best_metrics, self._objective), "bold green"),
            (f"  trial {progress.best_trial}  ", "dim"),
            settings(progress.best_config),
        )

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)


class PlainDisplay:
    """One line per event, for logs and pipes."""

    def __init__(self, console: Console, objective: Objective) -> None:
        self._console = console
        self._objective = objective

    def __call__(self, event: StudyEvent) -> None:
        line = sentence(event, self._objective)
        if line:
            self._console.print(line, soft_wrap=True)

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exc: object) -> None: ...


class JsonDisplay:
    """One JSON object per event: `kind`, `elapsed_s` and the fields of the event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: StudyEvent) -> None:
        if not isinstance(event, Tick):
            line = {"kind": event.kind, "elapsed_s": round(event.progress().elapsed_s, 3), **event.facts()}
            self._console.out(json.dumps(line))

    def __enter__(self) -> JsonDisplay:
        return self

    def __exit__(self, *exc: object) -> None: ...


def display_for(console: Console, objective: Objective, as_json: bool = False) -> Display:
    """Return the display that suits the console: a terminal, a log, or a program that reads JSON."""
    if as_json:
        return JsonDisplay(console)
    return LiveDisplay(console, objective) if console.is_terminal else PlainDisplay(console, objective)


def results(metrics: Metrics, objective: Objective) -> str:
    """Format the metrics of the objective: "accuracy 0.973, latency_s 3.4 ms"."""
    return ", ".join(f"{name} {metric(name, metrics[name])}" for name in objective.metrics if name in metrics)


def rung_progress(rung: RunningRung) -> str:
    """Format the progress of a rung: "epoch 3/9", or "2.50 s of 10.0 s" if it is granted time."""
    if rung.time_granted_s is not None:
        return f"{duration(rung.time_s)} of {duration(rung.time_granted_s)}"
    return f"epoch {min(rung.epochs_done + 1, rung.epochs_granted)}/{rung.epochs_granted}"


def _running_rungs(progress: StudyProgress) -> Table:
    rows = Table.grid(padding=(0, 2))
    for rung in progress.running:
        granted: float = rung.epochs_granted if rung.time_granted_s is None else rung.time_granted_s
        done: float = rung.epochs_done if rung.time_granted_s is None else rung.time_s
        rows.add_row(
            f"trial {rung.trial}",
            f"rung {rung.rung} (level {rung.level})",
            ProgressBar(total=granted, completed=min(done, granted), width=12),
            rung_progress(rung),
            count(rung.threads, "thread"),
        )
    return rows


def sentence(event: StudyEvent, objective: Objective) -> str:
    """Return the event as one line; empty for events that are not shown."""
    match event:
        case StudyStarted():
            return f"study {event.study}: {objective}; saved in {event.folder}"
        case ParallelismMeasured():
            rates = ", ".join(f"{setup}: {number(rate)}" for setup, rate in event.batches_per_s.items())
            chosen = f"{count(event.parallel, 'parallel trial')}, {count(event.threads, 'thread')} each"
            return f"measured batches/s: {rates or 'not possible here'}; chosen: {chosen}"
        case TrialPromoted():
            data = f" on {share(event.data)} of the data" if event.data < 1 else ""
            seconds = event.time_s
            grant = count(event.epochs, "epoch") if seconds is None else f"{duration(seconds)} of training"
            return f"trial {event.trial} promoted to rung {event.rung}: {grant}{data}"
        case TrialForked():
            how = "continues" if event.rung else "starts"
            return f"trial {event.trial} {how}: {fork_of(event.config)}"
        case RungStarted():
            return f"trial {event.trial} starts: {settings(event.config)}"
        case RungFinished():
            progress = event.progress()
            best = f"; best {results(progress.best_metrics, objective)} (trial {progress.best_trial})"
            left = f"; {remaining(progress.left_s)} left" if progress.left_s is not None else ""
            return f"trial {event.trial} rung {event.rung}: {results(event.metrics, objective)}{best}{left}"
        case ServingMeasured():
            how = "known already" if event.recalled else f"{event.points} points in {duration(event.measured_s)}"
            latency, throughput = event.metrics["latency_s"], event.metrics["throughput_per_s"]
            cost = f"{duration(latency)} per sample, {number(throughput)} samples/s ({event.source})"
            doubts = f"; disturbed: {', '.join(event.doubts)}" if event.doubts else ""
            return f"trial {event.trial} on {event.device}: {cost} ({how}){doubts}"
        case KnobsTuned():
            return f"trial {event.trial} knobs, epoch {event.epoch}: {event.note}"
        case TrialFailed():
            return f"trial {event.trial} FAILED ({event.failure}): {event.reason}"
        case TrialRetried():
            return f"trial {event.trial} is retried (attempt {event.attempt}): {event.reason}"
        case StageStarted():
            return event.message
        case StudyEnded():
            return f"ended: {event.reason}"
    return ""
