"""Running a study from the command line, and printing the result."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.text import Text

from onefold.cli import tables
from onefold.cli.console import err, out
from onefold.cli.display import Display, results
from onefold.model_folder import check_target
from onefold.report import phrases
from onefold.study import Result, Study
from onefold.vocabulary.quantities import duration, metric, settings
from onefold.vocabulary.ranking import ranked


def run(study: Study, display: Display, as_json: bool, save: Path | None) -> None:
    """Run a study to its end and print the winner; an interrupted study prints the best so far and exits with 130."""
    try:
        with display:
            result = study.run()
    except KeyboardInterrupt:
        if not as_json:
            _print_best_so_far(study)
        err.print(f"interrupted; nothing is lost. Continue with: onefold resume {study.name}")
        raise typer.Exit(130) from None
    if not as_json:
        _print_result(result)
    if save is not None:
        result.save(save)
        if not as_json:
            out.print(f"saved   {save}", soft_wrap=True)


def check_save_folder(save: Path | None) -> None:
    """Raise InputError, before any training, if a model cannot be saved in this folder."""
    if save is not None:
        check_target(save, "save")


def _print_best_so_far(study: Study) -> None:
    card, objective, trials = study.record.result, study.spec.objective, study.trials
    if not card:
        return
    out.print()
    if ranking := ranked(trials, objective):
        out.print(tables.best_trials(ranking, objective))
        out.print()
    metrics = results(card["metrics"], objective)
    out.print(Text.assemble(("so far", "bold green"), f"  trial {card['trial']}: {metrics}"), soft_wrap=True)
    out.print(f"        {settings(card['config'])}", soft_wrap=True)
    out.print(f"model   {study.folder / 'best'}", soft_wrap=True)


def _print_result(result: Result) -> None:
    out.print()
    out.print(tables.best_trials(result.ranking, result.objective))
    if result.ranking and result.best.metrics != result.ranking[0].metrics:
        note = phrases.remeasured(result.ranking[0], result.best, result.objective.metrics, metric)
        out.print(Text(note, style="dim"), soft_wrap=True)
    out.print()
    recommendation = result.recommendation
    if not result.is_feasible:
        requirements = ", ".join(f"{metric}{bound}" for metric, bound in result.objective.require.items())
        shortfalls = recommendation.shortfalls if recommendation is not None else ()
        for line in shortfalls or (f"No trial meets {requirements}; the nearest one is shown.",):
            out.print(Text(line, style="bold yellow"), soft_wrap=True)
    metrics = results(result.metrics, result.objective)
    test = f"; on test data: {results(result.test, result.objective)}" if result.test else ""
    out.print(Text.assemble(("winner", "bold green"), f"  trial {result.best.number}: {metrics}{test}"), soft_wrap=True)
    out.print(f"        {settings(result.config)}", soft_wrap=True)
    if len(result.objective.goals) > 1:
        front = ", ".join(str(trial.number) for trial in result.front)
        out.print(f"front   trials {front}: none is dominated by another (Pareto front)", soft_wrap=True)
    for device, surface in result.surfaces.items():
        out.print(f"serving {device}: {phrases.serving(surface)}", soft_wrap=True)
    for reason in recommendation.reasons if recommendation is not None else ():
        out.print(f"why     {reason}", soft_wrap=True)
    if result.shortlist is not None:
        folder = f"; in {result.compressed}" if result.compressed is not None else ""
        out.print(f"smaller {result.shortlist.why}{folder}", soft_wrap=True)
    cost = f"after {duration(result.elapsed_s)}; {tables.cost(result.cost)}"
    out.print(f"ended   {result.reason}, {cost}", soft_wrap=True)
    out.print(f"model   {result.folder / 'best'}", soft_wrap=True)
    out.print(f"report  {result.report}", soft_wrap=True)
