"""What a person sees while a study runs: a live panel on a terminal, plain lines elsewhere, JSON lines for machines."""

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
from onefold.study.events import RunningRung, StageStarted, StudyEvent, StudyProgress
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import count, duration, metric, number, settings, share
from onefold.vocabulary.records import Energy, Metrics


class Display(Protocol):
    """Shows the news of a study. `with display:` opens and closes it."""

    def __call__(self, event: StudyEvent) -> None: ...

    def __enter__(self) -> Display: ...

    def __exit__(self, *exc: object) -> None: ...


class LiveDisplay:
    """A panel that is drawn anew a few times a second; what deserves to stay is printed above it."""

    def __init__(self, console: Console, objective: Objective) -> None:
        self._console = console
        self._objective = objective
        self._now: StudyProgress | None = None
        self._stage = ""  # what is going on when the trials are done
        self._seen = time.monotonic()
        self._live = Live(console=console, get_renderable=self.panel, refresh_per_second=4, transient=True)

    def __call__(self, event: StudyEvent) -> None:
        self._stage = event.message if isinstance(event, StageStarted) else ""
        self._now, self._seen = event.progress(), time.monotonic()
        line = sentence(event, self._objective)
        if line and event.kind in ("started", "measured", "knobs", "failed", "retried"):
            self._console.print(line)

    def panel(self) -> Group:
        """What is drawn now."""
        now = self._now
        if self._stage:
            return Group(Text(f"{self._stage} …", style="dim"))
        if now is None or not now.trials_started:
            return Group(Text("starting the workers …", style="dim"))
        elapsed_s = now.elapsed_s + time.monotonic() - self._seen
        head = Table.grid(padding=(0, 2))
        remaining = f", about {duration(now.left_s)} left" if now.left_s is not None else ""
        done = elapsed_s / (elapsed_s + now.left_s) if now.left_s is not None else 0.0
        head.add_row(
            ProgressBar(total=1.0, completed=done, width=24),
            f"{now.trials_started}/{now.trials_planned} trials",
            Text(f"{now.trials_failed} failed" if now.trials_failed else "", style="red"),
            f"{duration(round(elapsed_s, 1))} elapsed{remaining}",
            energy_with_source(Energy(now.energy_j, now.energy_source)),
        )
        best = Text("no result yet", style="dim")
        if now.best_trial is not None:
            best = Text.assemble(
                ("best ", "dim"),
                (results(now.best_metrics, self._objective), "bold green"),
                (f"  trial {now.best_trial}  ", "dim"),
                settings(now.best_config),
            )
        rows = Table.grid(padding=(0, 2))
        for visit in now.running:
            granted: float = visit.epochs_granted if visit.time_granted_s is None else visit.time_granted_s
            spent: float = visit.epochs_done if visit.time_granted_s is None else visit.time_s
            bar = ProgressBar(total=granted, completed=min(spent, granted), width=12)
            threads = count(visit.threads, "thread")
            rows.add_row(
                f"trial {visit.trial}", f"rung {visit.rung} (level {visit.level})", bar, progress(visit), threads
            )
        return Group(head, best, rows)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(None, None, None)


class PlainDisplay:
    """One line for everything worth one: for logs and pipes."""

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
    """One JSON object a line: `kind`, `elapsed_s` and the facts."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: StudyEvent) -> None:
        if event.kind != "tick":
            line = {"kind": event.kind, "elapsed_s": round(event.progress().elapsed_s, 3), **event.facts()}
            self._console.out(json.dumps(line))

    def __enter__(self) -> JsonDisplay:
        return self

    def __exit__(self, *exc: object) -> None: ...


def display_for(console: Console, objective: Objective, as_json: bool = False) -> Display:
    """The display that suits where the words go: a terminal, a log, or a program."""
    if as_json:
        return JsonDisplay(console)
    return LiveDisplay(console, objective) if console.is_terminal else PlainDisplay(console, objective)


def progress(visit: RunningRung) -> str:
    """epoch 3/9, or 2.5s of 10s where seconds are granted."""
    if visit.time_granted_s is not None:
        return f"{duration(visit.time_s)} of {duration(visit.time_granted_s)}"
    return f"epoch {min(visit.epochs_done + 1, visit.epochs_granted)}/{visit.epochs_granted}"


def results(metrics: Metrics, objective: Objective) -> str:
    """accuracy 0.973, parameters 1234: the metrics that the objective looks at."""
    return ", ".join(f"{name} {metric(name, metrics[name])}" for name in objective.metrics if name in metrics)


def sentence(event: StudyEvent, objective: Objective) -> str:
    """The news in one line; empty for what needs none."""
    facts = event.facts()
    if event.kind == "started":
        return f"study {facts['study']}: {objective}; saved in {facts['folder']}"
    if event.kind == "measured":
        figures = ", ".join(f"{setup}: {number(pace)}" for setup, pace in facts["batches_per_s"].items())
        chosen = f"{count(facts['parallel'], 'trial')} side by side, {count(facts['threads'], 'thread')} each"
        few = "".join(f", {threads} when {few} or fewer are left" for few, threads in facts["threads_of_few"])
        return f"measured batches/s: {figures or 'not possible here'}; chosen: {chosen}{few}"
    if event.kind == "trial":
        return f"trial {facts['trial']} starts: {settings(facts['config'])}"
    if event.kind == "promoted":
        data = f" on {share(facts['data'])} of the data" if facts["data"] < 1 else ""
        seconds = facts["time_s"]
        grant = count(facts["epochs"], "epoch") if seconds is None else f"{duration(seconds)} of training"
        return f"trial {facts['trial']} promoted to rung {facts['rung']}: {grant}{data}"
    if event.kind == "result":
        now = event.progress()
        best = f"; best {results(now.best_metrics, objective)} (trial {now.best_trial})"
        left = f"; about {duration(now.left_s)} left" if now.left_s is not None else ""
        return f"trial {facts['trial']} rung {facts['rung']}: {results(facts['metrics'], objective)}{best}{left}"
    if event.kind == "served":
        how = "known already" if facts["recalled"] else f"{facts['points']} points in {duration(facts['measured_s'])}"
        latency, throughput = facts["metrics"]["latency_s"], facts["metrics"]["throughput_per_s"]
        figures = f"{duration(latency)} a sample, {number(throughput)} samples/s ({facts['source']})"
        return f"trial {facts['trial']} on {facts['device']}: {figures} ({how})"
    if event.kind == "knobs":
        return f"trial {facts['trial']} knobs, epoch {facts['epoch']}: {facts['note']}"
    if event.kind == "failed":
        return f"trial {facts['trial']} FAILED ({facts['failure']}): {facts['reason']}"
    if event.kind == "retried":
        return f"trial {facts['trial']} is tried again (attempt {facts['attempt']}): {facts['reason']}"
    if event.kind == "stage":
        return str(facts["message"])
    if event.kind == "ended":
        return f"ended: {facts['reason']}"
    return ""
