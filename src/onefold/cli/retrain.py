"""`onefold retrain`: a deployed model, made better on new data within a memory limit and a time window."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from onefold.cli.console import err, out, print_report
from onefold.cli.options import HomeOption, JsonOption
from onefold.device.catalogue import HOST
from onefold.vocabulary.quantities import duration


def retrain(
    model: Annotated[Path, typer.Argument(help="A folder that onefold tune … --save or onefold train … --save wrote")],
    data: Annotated[Path, typer.Option(help="A folder of new data: inputs.npy, targets.npy; or an .npz with both")],
    memory: Annotated[
        str | None, typer.Option(help="The most that this process may ever take, such as 500MB (default: what is free)")
    ] = None,
    window: Annotated[str, typer.Option(help="When it must be done, such as 90s, 10m or 1h")] = "10m",
    device: Annotated[str, typer.Option(help="host, cuda, or a device whose cores and memory are the limits")] = HOST,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plans that fit, and retrain nothing")
    ] = False,
    strategy: Annotated[
        str,
        typer.Option(help="onefold; or static, dgc, dga, sage, bayesian, oom-retry, last-layer, to compare"),
    ] = "onefold",
    rules: Annotated[Path | None, typer.Option(help="A file with rules of your own")] = None,
    alpha: Annotated[str, typer.Option(help="What gain counts against speed: 0 to 1, or auto")] = "0.9",
    optimizer: Annotated[str, typer.Option(help="adam, sgd")] = "adam",
    metric: Annotated[str | None, typer.Option(help="What the model is judged by (default: accuracy)")] = None,
    save: Annotated[Path | None, typer.Option(help="Leave the model's folder as it is and write here")] = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same batches")] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retrain a deployed model on new data, within a memory limit and a time window. It never gets worse."""
    began = _process_began()
    from onefold.retraining.api import plan_retraining
    from onefold.retraining.api import retrain as make

    if strategy != "onefold":
        import onefold.baselines.retraining  # noqa: F401 - registers the strategies to compare with

    options: dict[str, Any] = dict(
        memory=memory, window=window, device=device, strategy=strategy, rules=rules, alpha=alpha, optimizer=optimizer,
        metric=metric, home=home, seed=seed, began=began,
    )  # fmt: skip
    try:
        with nullcontext() if as_json else out.status("opening the model …") as status:
            tell = _teller(status, began)
            if plan_only:
                plans, limits = plan_retraining(model, data, tell=tell, **options)
            else:
                found = make(model, data, save=save, tell=tell, **options)
    except KeyboardInterrupt:
        err.print("interrupted; the model is as it was")
        raise typer.Exit(130) from None
    from onefold.report.retraining import RetrainingReport, as_plans_json, as_plans_text

    if plan_only:
        out.out(json.dumps(as_plans_json(plans, limits)) if as_json else as_plans_text(plans, limits))
        return
    print_report(RetrainingReport(found.summary), as_json)
    if as_json:
        return
    if found.summary.kept_new:
        out.print(f"model   {found.folder}", soft_wrap=True)
    out.print(f"report  {found.report}", soft_wrap=True)


def _teller(status: Any, began: float) -> Any:
    """Shows what is going on."""

    def tell(what: Any) -> None:
        if status is None:
            return
        at = duration(time.monotonic() - began)
        if isinstance(what, str):
            status.update(f"{at}  {what} …")
        elif hasattr(what, "rule"):
            out.print(f"{at}  {what.rule}: {what.said}", soft_wrap=True, highlight=False)
        elif hasattr(what, "loss"):
            score = "" if what.score is None else f", score {what.score:.4f}"
            status.update(f"{at}  micro-window {what.number}: {what.plan}, loss {what.loss:.4f}{score}")
        else:
            status.update(f"{at}  {len(what)} plans fit; trying them …")

    return tell


def _process_began() -> float:
    """When this process began, on the monotonic clock: the window is the user's, who waits for the interpreter too."""
    now = time.monotonic()
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux
        return now
