"""`onefold measure` and `onefold serve-check`: how a model serves, by itself."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import GoalOption, HomeOption, JsonOption, LargestBatchOption, space_up_to
from onefold.device import Device, Session
from onefold.device.catalogue import HOST
from onefold.device.host import host as this_machine
from onefold.serving import deploy
from onefold.serving.api import measure as measure_model
from onefold.serving.api import serve_check as check_folder
from onefold.serving.export import samples_beside
from onefold.serving.scenarios import USUAL
from onefold.serving.signature import read
from onefold.study import Home
from onefold.vocabulary.quantities import NOTHING, duration, number, rounded
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import OptimizeFor, Served


def measure(
    model: Annotated[Path, typer.Argument(help="An ONNX model")],
    devices: Annotated[list[str] | None, typer.Option("--device", help="Where it will be served; repeatable")] = None,
    serve_for: Annotated[str, typer.Option(help="latency, throughput or energy")] = OptimizeFor.THROUGHPUT.value,
    search: Annotated[str, typer.Option(help="few, grid, random, tpe, halving")] = "few",
    scenarios: Annotated[
        list[str] | None,
        typer.Option("--scenario", help="single-stream, server:8@20, multi-stream:100, offline; repeatable"),
    ] = None,
    scenario_goal: GoalOption = "mean",
    largest_batch: LargestBatchOption = None,
    save: Annotated[Path | None, typer.Option(help="Make a deployment folder here")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find out how to serve a model that you already have."""
    names = devices or [HOST]
    with nullcontext() if as_json else out.status(f"measuring on {names[0]} …") as status:
        count = 0

        def heard(device: Device, served: Served) -> None:
            nonlocal count
            count += 1
            if status is not None:
                latency = duration(served.latency_s)
                status.update(f"measuring on {device.name}: {count} measurements; {served.point}: {latency}")

        deployment = measure_model(
            model,
            names,
            serve_for=serve_for,
            serving_search=search,
            serving_space=space_up_to(largest_batch),
            scenarios=scenarios or USUAL,
            scenario_goal=scenario_goal,
            save=save,
            home=home,
            listener=heard,
        )
    if as_json:
        out.out(json.dumps(to_json(deployment)))
        return
    for on in deployment.devices:
        _show(on)
    if save is not None:
        out.print(f"saved in {save}; check it with: onefold serve-check {save}", soft_wrap=True)


def serve_check(
    folder: Annotated[Path, typer.Argument(help="A deployment folder")],
    device: Annotated[str | None, typer.Option(help="One of its devices (default: all)")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a deployed model with its recommended settings and put measured beside expected."""
    deployment = deploy.read(folder)
    host = this_machine(Home(home).devices)
    with nullcontext() if as_json else out.status(f"serving {folder} …"):
        rows = check_folder(folder, device, home=home)
    if as_json:
        out.out(json.dumps([{**to_json(row), "ratio": row.ratio} for row in rows]))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("device", "scenario", "batch", "threads", "expected", "measured", "ratio", "how", "response"):
        words = ("device", "scenario", "how", "response")
        table.add_column(column, justify="left" if column in words else "right")
    for row in rows:
        point = row.expected.point
        cells = [duration(row.expected.latency_s), duration(row.measured.latency_s), f"{row.ratio:.2f}"]
        how = row.measured.source.value
        response = f"{duration(row.predicted.mean_s)} simulated"
        if row.response is not None:
            response += f", {duration(row.response.mean_s)} served (p99 {duration(row.response.p99_s)})"
        table.add_row(row.device, row.scenario, str(point.batch_size), str(point.threads), *cells, how, response)
    out.print(table)
    tried = {(row.device, row.scenario) for row in rows}
    wanted = [(on.device.name, choice.scenario) for on in deployment.devices for choice in on.choices]
    left = [f"{name} {text}" for name, text in wanted if device in (None, name) and (name, text) not in tried]
    if left:
        out.print(f"note: not tried, since it takes more threads than this machine has cores: {', '.join(left)}")
    for on in deployment.devices:
        for note in on.surface.notes if device in (None, on.device.name) else ():
            out.print(f"note: when it was measured for {on.device.name}: {note}", soft_wrap=True)
    if host.digest != deployment.host.digest:
        out.print("note: the expected figures were taken on another machine, or before it was calibrated anew")


def open_model(session: Session, model: Path) -> None:
    """Loads a model with the samples beside it; a file that is no model is told now."""
    read(model)
    samples = samples_beside(model)
    session.prepare(model, samples if samples.is_file() else None, [])


def _show(on: deploy.DeviceSettings) -> None:
    measured = sum(served.runs > 0 for served in on.surface.served)
    out.print(f"{on.device.name}: {on.device.title}; {measured} points measured in {duration(on.surface.measured_s)}")
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("scenario", "batch", "threads", "graph", "wait", "latency", "p99", "samples/s", "J/sample", "how"):
        table.add_column(column, justify="left" if column in ("scenario", "graph", "how") else "right")
    for choice in on.choices:
        served, point = on.expected(choice.point), choice.point
        joules = served.energy_per_sample_j
        energy = NOTHING if joules is None else f"{number(joules)} ({served.energy.source})"
        table.add_row(
            choice.scenario, str(point.batch_size), str(point.threads), point.graph_level, duration(choice.wait_s),
            duration(served.latency_s), duration(served.p99_s), rounded(served.throughput_per_s, 4), energy,
            served.source.value,
        )  # fmt: skip
    out.print(table)
    for choice in on.choices:
        real = f"; served for real it was {duration(choice.confirmed.mean_s)}" if choice.confirmed else ""
        out.print(f"{choice.scenario}: {choice.why}{real}", soft_wrap=True)
    for note in on.surface.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print()
