"""`onefold resume`, `list`, `show` and `report`: studies that exist already."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from onefold.cli import tables
from onefold.cli.console import out, print_report
from onefold.cli.display import display_for, results
from onefold.cli.options import (
    BUDGET,
    GuardOption,
    HomeOption,
    JsonOption,
    PreferOption,
    RuntimeOption,
    SaveOption,
    StudyArgument,
    preference_of,
)
from onefold.cli.study_run import check_save_folder, run
from onefold.model_folder import read_card
from onefold.store import Store, StudyRecord
from onefold.study import Home, Study
from onefold.study.coordinator import DONE
from onefold.study.spec import Spec
from onefold.study.summary import summary_of
from onefold.vocabulary.errors import InputError, StoreError
from onefold.vocabulary.records import Metrics, StudyState, to_json

if TYPE_CHECKING:
    from onefold.report import StudyReport


def resume(
    study: StudyArgument,
    trials: Annotated[int | None, typer.Option(help="Additional trials", rich_help_panel=BUDGET)] = None,
    minutes: Annotated[float | None, typer.Option(help="Additional minutes", rich_help_panel=BUDGET)] = None,
    joules: Annotated[float | None, typer.Option(help="Additional energy", rich_help_panel=BUDGET)] = None,
    target: Annotated[float | None, typer.Option(help="A new target", rich_help_panel=BUDGET)] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed trials again, from their last checkpoints")
    ] = False,
    save: SaveOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue an interrupted study, or extend one that has ended.

    For another model of its Pareto front: onefold export STUDY FOLDER --prefer GOAL
    """
    check_save_folder(save)
    opened = Study.open(study, home=home)
    opened.on_event = display = display_for(out, opened.spec.objective, as_json)
    is_extended = any(limit is not None for limit in (trials, minutes, joules, target))
    has_failed = retry_failed and any(trial.failure is not None for trial in opened.trials)
    if is_extended or has_failed:
        opened.extend(trials=trials, minutes=minutes, joules=joules, target=target, retry_failed=retry_failed)
    elif retry_failed and not as_json:
        out.print("note    no trial has failed")
    had_ended = opened.record.state is StudyState.DONE
    run(opened, display, as_json, save)
    if had_ended and not is_extended and not has_failed and not as_json and opened.record.reason == DONE:
        out.print(f"note    the study had ended; add trials to continue: onefold resume {study} --trials 9")


def list_studies(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all studies, newest first."""
    home_folder = Home(home)
    with closing(home_folder.store()) as store:
        records = [readable(record) for record in store.studies()]
        best = {record.name: _best_so_far(record, store, home_folder) for record in records}
    running = {record.name for record in records if home_folder.is_running(record.name)}
    if as_json:
        out.out(json.dumps([{**to_json(record), "running": record.name in running} for record in records]))
    elif records:
        out.print(tables.studies(records, running, best))
        for record in records:
            if record.problem:
                out.print(f"{record.name} is unreadable: {record.problem}", soft_wrap=True)
    else:
        out.print(f"no studies in {home_folder.path} yet; start one with: onefold tune digits")


def _best_so_far(record: StudyRecord, store: Store, home: Home) -> Metrics:
    """Return the metrics of the model that a study handed over, or those of the best trial so far, as `show` does."""
    if record.problem:
        return {}
    if metrics := record.result.get("metrics"):
        return dict(metrics)
    best = summary_of(record.name, store, folder=home.folder(record.name), epochs="none").best
    return {} if best is None else best.metrics


def readable(record: StudyRecord) -> StudyRecord:
    """Return the record of a study, with the problem if its specification cannot be read."""
    if record.problem:
        return record
    try:
        Spec.from_json(record.spec)
    except StoreError as error:
        return replace(record, problem=str(error))
    return record


def show(
    study: StudyArgument,
    front: Annotated[bool, typer.Option("--front", help="Show all trials of the Pareto front, and no others")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the report of a study as text: its best trials, its failures, its cost."""
    from onefold.report import FrontReport

    report = report_of(study, home, "all" if as_json and not front else "none")
    print_report(FrontReport(report.summary) if front else report, as_json)


def export(
    study: StudyArgument,
    folder: Annotated[Path, typer.Argument(help="Folder to write the model into")],
    trial: Annotated[int | None, typer.Option(help="Trial to export (default: the one handed over)")] = None,
    prefer: PreferOption = None,
    guard: GuardOption = None,
    runtimes: RuntimeOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the model of a trial into a folder; with devices, measured and ready to serve.

    --prefer and --guard choose from the Pareto front again, and the reasons are printed.
    """
    opened = Study.open(study, home=home)
    with nullcontext() if as_json else out.status(f"exporting from {study} …"):
        opened.export(folder, trial, prefer=preference_of(prefer, guard or []), runtimes=runtimes or ())
    card = read_card(folder)
    if as_json:
        out.out(json.dumps(card))
    else:
        metrics = results(card["metrics"], opened.spec.objective)
        out.print(f"trial {card['trial']}: {metrics}", soft_wrap=True)
        for reason in card.get("why", ()):
            out.print(f"why     {reason}", soft_wrap=True)
        out.print(f"saved   {folder}", soft_wrap=True)


def write_report(
    study: StudyArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: report.html of the study)")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Write text, to the screen or --output")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a study as one HTML file, as text or as JSON."""
    report = report_of(study, home, "all" if as_json else "none" if text else "curves")
    if as_json or text:
        content = json.dumps(report.as_json(), indent=2) if as_json else report.as_text()
        if output is None:
            out.out(content)
            return
    else:
        content = report.as_html()
        output = output or Home(home).folder(study) / "report.html"
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {output}: {error.strerror}; give another file with --output, or --text"
        ) from error
    out.print(f"written to {output}", soft_wrap=True)


def report_of(study: str, home: Path | None, epochs: Literal["all", "curves", "none"]) -> StudyReport:
    """Return the report of a study as it stands; `epochs` says which ones its form needs."""
    from onefold.report import StudyReport

    home_folder = Home(home)
    with closing(home_folder.store()) as store:
        folder, is_running = home_folder.folder(study), home_folder.is_running(study)
        return StudyReport(summary_of(study, store, folder=folder, is_running=is_running, epochs=epochs))
