"""`onefold measure`, `onefold serve` and `onefold serve-check`: serve a single model."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import (
    GoalOption,
    HomeOption,
    JsonOption,
    LargestBatchOption,
    RuntimeOption,
    TrustOption,
    space_up_to,
)
from onefold.device import Session
from onefold.device.catalog import HOST
from onefold.device.host import host as this_machine
from onefold.device.measuring_process import HANG_TIMEOUT_S
from onefold.model_server.api import Listening, ServerOptions
from onefold.model_server.api import serve as serve_folder
from onefold.serving import deploy
from onefold.serving.api import MeasureStage, PointMeasured
from onefold.serving.api import measure as measure_model
from onefold.serving.api import serve_check as check_folder
from onefold.serving.export import samples_beside
from onefold.serving.options import ServingOptions
from onefold.serving.signature import read
from onefold.study import Home
from onefold.vocabulary.quantities import MISSING, duration, metric, number, parse_bytes, rounded, size
from onefold.vocabulary.records import to_json
from onefold.vocabulary.requirement import requirement
from onefold.vocabulary.serving import OptimizeFor


def measure(
    model: Annotated[Path, typer.Argument(help="An ONNX model")],
    devices: Annotated[list[str] | None, typer.Option("--device", help="Device to serve on; repeatable")] = None,
    optimize_for: Annotated[
        str, typer.Option(help="Goal of the serving points: latency, throughput, energy")
    ] = OptimizeFor.THROUGHPUT.value,
    search: Annotated[str, typer.Option(help="Search over serving points: few, grid")] = "few",
    scenarios: Annotated[
        list[str] | None,
        typer.Option("--scenario", help="Load: single-stream, multi-stream:8@20, server:100, offline; repeatable"),
    ] = None,
    scenario_goal: GoalOption = "mean",
    largest_batch: LargestBatchOption = None,
    runtimes: RuntimeOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help='What a runtime has to keep, such as "agreement>=0.99"; repeatable'),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write a deployment folder here")] = None,
    hang_timeout: Annotated[
        float, typer.Option(help="Seconds to load the model or run one batch after which it has hung")
    ] = HANG_TIMEOUT_S,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best serving points of an ONNX model."""
    names = devices or [HOST]
    with nullcontext() if as_json else out.status(f"measuring on {names[0]} …") as status:
        count = 0

        def show_progress(event: PointMeasured | MeasureStage) -> None:
            nonlocal count
            if isinstance(event, MeasureStage):
                if status is not None:
                    status.update(event.message)
                return
            count += 1
            if status is not None:
                latest = f"{event.served.point}: {duration(event.served.latency_s)}"
                status.update(f"measuring on {event.device.name}: {count} measurements; {latest}")

        deployment = measure_model(
            model,
            names,
            serving=ServingOptions(
                optimize_for,
                search,
                space_up_to(largest_batch),
                tuple(scenarios or ()),
                scenario_goal,
                runtimes=tuple(runtimes or ()),
            ),
            require=dict(requirement(text) for text in require or []),
            save=save,
            hang_timeout_s=hang_timeout,
            home=home,
            on_event=show_progress,
        )
    if as_json:
        out.out(json.dumps(to_json(deployment)))
        return
    for settings in deployment.devices:
        _show(settings)
    if save is not None:
        out.print(f"saved in {save}; check it with: onefold serve-check {save}", soft_wrap=True)


def serve_check(
    folder: Annotated[Path, typer.Argument(help="A deployment folder")],
    device: Annotated[str | None, typer.Option(help="One of its devices (default: all)")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a deployed model with its recommended settings and compare measured with expected latency."""
    deployment = deploy.read(folder)
    host = this_machine(Home(home).devices)
    with nullcontext() if as_json else out.status(f"serving {folder} …"):
        checks = check_folder(folder, device, home=home)
    if as_json:
        out.out(json.dumps([{**to_json(check), "ratio": check.ratio} for check in checks]))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("device", "scenario", "batch", "threads", "expected", "measured", "ratio", "source", "response"):
        is_text = column in ("device", "scenario", "source", "response")
        table.add_column(column, justify="left" if is_text else "right")
    for check in checks:
        point = check.expected.point
        response = f"{duration(check.predicted.mean_s)} simulated"
        if check.response is not None:
            response += f", {duration(check.response.mean_s)} in a load test (p99 {duration(check.response.p99_s)})"
        table.add_row(
            check.device, check.scenario, str(point.batch_size), str(point.threads),
            duration(check.expected.latency_s), *_outcome(check), response,
        )  # fmt: skip
    out.print(table)
    for check in checks:
        if check.unchecked:
            expected = f"expected {check.expected.source_text}"
            out.print(
                f"note: not checked: {check.device} {check.scenario} {check.unchecked} ({expected})", soft_wrap=True
            )
    for settings in (settings for settings in deployment.devices if device in (None, settings.device.name)):
        for note in settings.surface.notes:
            out.print(f"note: when measured for {settings.device.name}: {note}", soft_wrap=True)
    if host.digest != deployment.host.digest:
        out.print("note: the expected figures are from another machine, or from before it was calibrated again")


def _outcome(check: deploy.ServeCheck) -> tuple[str, str, str]:
    """Return the measured latency, its ratio to the expected one, and its source."""
    if check.measured is None or check.ratio is None:
        return MISSING, MISSING, "not checked"
    return duration(check.measured.latency_s), f"{check.ratio:.2f}", check.measured.source.value


def serve(
    folder: Annotated[Path, typer.Argument(help="A deployment folder")],
    scenario: Annotated[
        str | None, typer.Option(help="One of its scenarios, by which requests are batched (default: the first)")
    ] = None,
    device: Annotated[str | None, typer.Option(help="One of its devices (default: the first)")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = ServerOptions.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one")] = ServerOptions.port,
    auth: Annotated[
        bool, typer.Option("--auth/--no-auth", help="Whether clients need the token; only on loopback may they not")
    ] = True,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token, created if needed (default: a new token at each start)")
    ] = None,
    max_request: Annotated[str, typer.Option(help="Largest body of a request")] = "16MB",
    max_waiting: Annotated[
        int, typer.Option(help="Samples that may wait; more are refused")
    ] = ServerOptions.max_waiting,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM), with --key")] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate")] = None,
    trust: TrustOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a deployed model over HTTP with dynamic batching, until it is interrupted."""

    def show(listening: Listening) -> None:
        choice = listening.choice
        if as_json:
            out.out(json.dumps({"url": listening.url, "token": listening.token, "scenario": choice.scenario}))
            return
        wait = f", waiting up to {duration(choice.wait_s)} for it" if choice.wait_s else ""
        batches = f"batches of up to {choice.point.batch_size}{wait}"
        out.print(f"{listening.url}: {choice.scenario}, {batches}", soft_wrap=True)
        if listening.token is not None:
            where = f" (in {token_file})" if token_file is not None else ""
            out.print(f"Authorization: Bearer {listening.token}{where}", soft_wrap=True)

    options = ServerOptions(host, port, auth, token_file, int(parse_bytes(max_request)), max_waiting, certificate, key)
    with suppress(KeyboardInterrupt):  # which is how it ends
        serve_folder(folder, scenario, device=device, options=options, trust=trust, home=home, on_start=show)


def open_model(session: Session, model: Path) -> None:
    """Load a model with the samples beside it. Raises ModelError if the file is not an ONNX model."""
    read(model)
    samples = samples_beside(model)
    session.prepare(model, samples if samples.is_file() else None, [])


def runtime_table(settings: deploy.DeviceSettings) -> Table:
    """Return the table of the runtimes that were compared; the recommended one is bold."""
    metrics = list(dict.fromkeys(name for result in settings.runtimes for name in result.metrics))
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("runtime", "version", "one sample", "threads", *metrics, "difference", "size", "note"):
        is_text = column in ("runtime", "version", "note")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    recommended = settings.choices[0].point.runtime
    for result in settings.runtimes:
        cells = [MISSING if name not in result.metrics else metric(name, result.metrics[name]) for name in metrics]
        is_chosen = result.runtime == recommended
        table.add_row(
            result.runtime,
            result.version.removeprefix(f"{result.runtime} ") or MISSING,
            MISSING if result.latency_s is None else duration(result.latency_s),
            MISSING if result.threads is None else str(result.threads),
            *cells,
            MISSING if result.error is None else f"{result.error:.1g}",
            MISSING if result.size_bytes is None else size(result.size_bytes),
            result.reason or ("recommended" if is_chosen else ""),
            style="bold" if is_chosen else "",
        )
    return table


def _show(settings: deploy.DeviceSettings) -> None:
    device, surface = settings.device, settings.surface
    measured = sum(served.runs > 0 for served in surface.served)
    out.print(f"{device.name}: {device.title}; {measured} points measured in {duration(surface.measured_s)}")
    table = Table(box=None, header_style="dim", pad_edge=False)
    columns = ("scenario", "runtime", "batch", "threads", "graph", "wait", "latency", "p99", "samples/s", "J/sample")
    for column in (*columns, "source"):
        table.add_column(column, justify="left" if column in ("scenario", "runtime", "graph", "source") else "right")
    for choice in settings.choices:
        served, point = settings.expected(choice.point), choice.point
        joules = served.energy_per_sample_j
        energy = MISSING if joules is None else f"{number(joules)} ({served.energy.source})"
        table.add_row(
            choice.scenario, point.runtime, str(point.batch_size), str(point.threads), point.graph_level,
            duration(choice.wait_s),
            duration(served.latency_s), duration(served.p99_s), rounded(served.throughput_per_s, 4), energy,
            served.source_text,
        )  # fmt: skip
    out.print(table)
    if settings.runtimes:
        out.print(runtime_table(settings))
    for choice in settings.choices:
        tested = f"; in a load test it was {duration(choice.confirmed.mean_s)}" if choice.confirmed else ""
        out.print(f"{choice.scenario}: {choice.why}{tested}", soft_wrap=True)
    for note in surface.notes:
        out.print(f"note: {note}", soft_wrap=True)
    out.print()
