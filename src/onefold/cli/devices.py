"""`onefold devices`: list, calibrate, probe and add devices."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.cli.serving import open_model
from onefold.device import STANDARD, Device, open_session
from onefold.device.agent_connection import AgentConnection
from onefold.device.agent_device import PROBE_S, device_of_agent
from onefold.device.catalog import HOST, check_name, device, devices, read_devices, remove_device, save_device
from onefold.device.device import MAX_SPREAD
from onefold.device.emulator_correction import BoardMeasurement, EmulatorFit, fit_emulator, read_board_measurements
from onefold.device.host import calibrate as calibrate_host
from onefold.device.host import change_of_figures, find_device
from onefold.device.host import host as this_machine
from onefold.device.pairing import find_pairing, pair, remove_pairing, save_pairing
from onefold.device.probe import device_from_probe, probe_source
from onefold.serving.api import forget_measurements
from onefold.serving.space import ServingSpace
from onefold.study import Home
from onefold.vocabulary.errors import DeviceError, DeviceUnavailable, InputError, TooLarge
from onefold.vocabulary.quantities import count as counted
from onefold.vocabulary.quantities import duration, number, parse_seconds, share, size
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import Served, ServingPoint

app = typer.Typer(help="List, calibrate and add devices that models are served on.", invoke_without_command=True)


@app.callback()
def catalog(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all devices of the catalog and those that you added."""
    if context.invoked_subcommand is None:
        _list(Home(home), as_json=as_json)


def _list(home: Home, *, as_json: bool) -> None:
    known = devices(home.devices)
    if as_json:
        out.out(json.dumps({name: to_json(board) for name, board in known.items()}))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("device", "cores", "GFLOP/s", "GB/s", "memory", "watts", "figures from", "description"):
        table.add_column(column, justify="left" if column in ("device", "figures from", "description") else "right")
    for board in known.values():
        watts = f"{number(board.idle_w)}-{number(board.busy_w)}"
        memory = size(board.memory_bytes)
        row = [board.name, str(board.cores), number(board.gflops), number(board.bandwidth_gbps), memory, watts]
        table.add_row(*row, board.source, board.title)
    out.print(table)
    out.print("\nGFLOP/s are per core. This machine is `host`; its figures are measured on first use.")


@app.command("list")
def list_devices(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all devices of the catalog and those that you added."""
    _list(Home(home), as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The device")], home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Show the figures of a device and where they come from."""
    target = find_device(name, Home(home).devices)
    if as_json:
        out.out(json.dumps(to_json(target)))
        return
    rows = {**to_json(target), **_present_state(target, Home(home))}
    for key, value in rows.items():
        if value not in (None, "", [], {}):
            out.print(f"{key:16} {number(value) if isinstance(value, (int, float)) else value}", soft_wrap=True)


def _present_state(target: Device, home: Home) -> dict[str, Any]:
    """Return what the agent of a device reports now; nothing for other devices."""
    if not target.agent or (pairing := find_pairing(target.name, home.pairings)) is None:
        return {}
    try:
        with pairing.connect(target.name, patience_s=0.0) as connection:
            status = connection.status()
    except DeviceUnavailable as error:
        return {"now": str(error)}
    board = status["board"]
    names = ("frequencies_ghz", "governor", "temperature_c", "throttling", "load", "energy")
    now = {name: board.get(name) for name in names}
    return {"address": pairing.address, "agent version": status.get("version"), **now}


@app.command()
def calibrate(
    name: Annotated[str, typer.Argument(help="Device to calibrate: host")] = HOST,
    seconds: Annotated[float, typer.Option(help="Duration of the measurement")] = 4.0,
    home: HomeOption = None,
) -> None:
    """Measure compute, bandwidth and operator overhead of this machine, the reference of emulated devices."""
    home_folder = Home(home)
    if name != HOST:
        device(name, home_folder.devices)
        raise DeviceError(
            f"{name} must be measured on the board: write the probe with `onefold devices probe > probe.py`, run it "
            f"there, and add its output with `onefold devices add board.json --name {name}`"
        )
    out.print(f"measuring for about {duration(seconds)}; keep the machine idle …")
    saved = home_folder.devices / f"{HOST}.toml"
    before = [device for device in read_devices(saved) if device.name == HOST] if saved.is_file() else []
    calibrated = calibrate_host(seconds)
    path = save_device(calibrated, home_folder.devices)
    figures = f"{number(calibrated.gflops)} GFLOP/s per core, {number(calibrated.bandwidth_gbps)} GB/s"
    out.print(f"{figures}, {number(calibrated.overhead_us)} µs per operator; saved in {path}", soft_wrap=True)
    out.print(calibrated.note, soft_wrap=True)
    if before:
        figure, changed = change_of_figures(before[0], calibrated)
        verdict = "agrees with" if changed <= MAX_SPREAD else "differs from"
        out.print(f"it {verdict} the calibration before: {figure} by {share(changed)}", soft_wrap=True)


@app.command()
def probe() -> None:
    """Print a stand-alone program that benchmarks a board: onefold devices probe > probe.py."""
    out.out(probe_source(), end="")


@app.command()
def add(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE|NAME", help="Output of the probe (JSON), a TOML file of devices, or a new name"),
    ],
    agent: Annotated[str | None, typer.Option(help="Address of the agent on the board: HOST:PORT")] = None,
    code: Annotated[str | None, typer.Option(help="Pairing code that the agent printed (default: ask)")] = None,
    seconds: Annotated[float, typer.Option(help="Duration of the benchmark by the agent")] = PROBE_S,
    name: Annotated[str | None, typer.Option(help="Name of the board")] = None,
    like: Annotated[str | None, typer.Option(help="Device whose power to assume if the board has no sensor")] = None,
    idle_w: Annotated[float | None, typer.Option(help="Power of the idle board in watts")] = None,
    busy_w: Annotated[float | None, typer.Option(help="Power with all cores busy in watts")] = None,
    home: HomeOption = None,
) -> None:
    """Add a board with an agent, a benchmarked board, or the devices of a TOML file to your devices."""
    home_folder = Home(home)
    model = find_device(like, home_folder.devices) if like else None
    if agent is not None:
        connection = _paired(name or str(file), agent, code, home_folder)
        with connection, out.status(f"paired; benchmarking {connection.name} …"):
            added = [device_of_agent(connection, idle_w=idle_w, busy_w=busy_w, like=model, seconds=seconds)]
    elif file.suffix == ".toml":
        added = read_devices(file)
    else:
        added = [device_from_probe(file, name, idle_w=idle_w, busy_w=busy_w, like=model)]
    for each in added:
        out.print(f"{each.name}: saved in {save_device(each, home_folder.devices)}", soft_wrap=True)


def _paired(name: str, address: str, code: str | None, home: Home) -> AgentConnection:
    """Pair with the agent of a board, unless this machine is paired with it already."""
    check_name(name, "device")
    if name == HOST:
        raise DeviceError(f"the name {HOST!r} is reserved for this machine; choose another")
    pairing = find_pairing(name, home.pairings)
    if code is None and pairing is not None:
        pairing = replace(pairing, address=address)  # the board may have moved
    else:
        entered = code if code is not None else typer.prompt("pairing code, as the agent printed it", err=True)
        pairing = pair(name, address, entered)
    save_pairing(pairing, name, home.pairings)
    return pairing.connect(name)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A device that you added")],
    home: HomeOption = None,
) -> None:
    """Remove a device that you added, and end the pairing with its agent."""
    home_folder = Home(home)
    pairing = find_pairing(name, home_folder.pairings)
    if not remove_device(name, home_folder.devices) and pairing is None:
        device(name, home_folder.devices)  # raises for an unknown name
        raise DeviceError(f"{name} is a device of the catalog, or of a file with several; only added ones are removed")
    if pairing is not None:
        try:
            with pairing.connect(name, patience_s=0.0) as connection:
                connection.call("DELETE", "/v1/pair")
        except DeviceError as error:
            out.print(f"note: the agent still knows this machine: {error}", soft_wrap=True)
        remove_pairing(name, home_folder.pairings)
    out.print(f"{name}: removed")


@app.command()
def forget(
    name: Annotated[str | None, typer.Argument(help="A device (default: all)")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Forget only older measurements, such as 90m, 12h or 30d")
    ] = None,
    disturbed: Annotated[bool, typer.Option("--disturbed", help="Forget only disturbed measurements")] = False,
    forget_all: Annotated[bool, typer.Option("--all", help="Forget all measurements on all devices")] = False,
    home: HomeOption = None,
) -> None:
    """Forget how architectures are served on a device, so that later studies measure them again."""
    if name is None and older_than is None and not disturbed and not forget_all:
        raise InputError("expected what to forget; name a device, or add --older-than 30d, --disturbed or --all")
    age_s = parse_seconds(older_than) if older_than is not None else 0.0
    count = forget_measurements(name, older_than_s=age_s, only_disturbed=disturbed, home=home)
    where = f" on {name}" if name is not None else ""
    out.print(f"forgot the measurements of {counted(count, 'architecture')}{where}; studies keep their own figures")


@app.command("fit")
def fit_to(
    name: Annotated[str, typer.Argument(help="Device that was measured")],
    model: Annotated[Path, typer.Option(help="ONNX model that was measured on the device")],
    points: Annotated[Path, typer.Option(help="CSV with the columns batch,threads,latency_s[,energy_j]")],
    save: Annotated[bool, typer.Option(help="Correct the figures of the device by the fit")] = True,
    home: HomeOption = None,
) -> None:
    """Fit the emulator of a device to measured points of a model, and show its error."""
    home_folder = Home(home)
    if name == HOST:
        raise DeviceError("this machine is not emulated; calibrate it with: onefold devices calibrate")
    if device(name, home_folder.devices).agent:
        raise DeviceError(f"{name} is measured through its agent, not emulated")
    target, measured = device(name, home_folder.devices), read_board_measurements(points)
    served, grid = _emulate(target, model, measured, home_folder)

    def emulated(batch: int, threads: int) -> Served:
        known = served.get((batch, threads))  # threads beyond this machine's cores count as all its cores
        return known if known is not None else served[batch, max(t for b, t in served if b == batch)]

    fitted = fit_emulator(
        measured,
        lambda batch, threads: emulated(batch, threads).latency_s,
        lambda batch, threads: emulated(batch, threads).energy.joules or 0.0,
    )
    _show_fit(fitted, emulated, grid)
    if save:
        # The figures of a device allow a single scale for all points: the median. The table shows each point's own.
        ratios = [math.log(point.latency_s / emulated(point.batch, point.threads).latency_s) for point in measured]
        scale = math.exp(statistics.median(ratios))
        corrected = replace(
            target.slower(scale),
            source="fitted",
            note=f"fitted to {len(measured)} points of {model.name}; before: {target.note}",
        )
        out.print(f"figures corrected by {1 / scale:.3g}x; saved in {save_device(corrected, home_folder.devices)}")


Points = list[tuple[int, int]]  # batch size and threads


def _emulate(
    target: Device, model: Path, measured: Sequence[BoardMeasurement], home: Home
) -> tuple[dict[tuple[int, int], Served], Points]:
    """Return the emulated cost of the measured points and of the serving space, and the points of that space."""
    served: dict[tuple[int, int], Served] = {}
    space = ServingSpace().on(target.cores)
    grid = [(batch, threads) for threads in space.threads for batch in space.batch_sizes]
    host = this_machine(home.devices)
    with open_session(target, host) as session, out.status(f"emulating {target.name} …"):
        open_model(session, model)
        for batch, threads in [*((point.batch, point.threads) for point in measured), *grid]:
            key = batch, min(threads, session.threads)
            with suppress(TooLarge):  # points that exceed the memory are left out
                served[key] = served.get(key) or session.serve(model, ServingPoint(*key), STANDARD)
        needed = [(point.batch, min(point.threads, session.threads)) for point in measured]
        if too_large := [batch for batch, threads in needed if (batch, threads) not in served]:
            memory = size(target.memory_bytes)
            raise DeviceError(f"a batch of {too_large[0]} needs more than the {memory} of memory of {target.name}")
        grid = [(batch, threads) for batch, threads in grid if (batch, min(threads, session.threads)) in served]
    return served, grid


def _show_fit(fitted: EmulatorFit, emulated: Callable[[int, int], Served], grid: Points) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("batch", "threads", "measured", "emulated", "fitted", "95 % interval"):
        table.add_column(column, justify="right")
    measured = {(point.batch, point.threads): point.latency_s for point in fitted.points}
    for batch, threads in dict.fromkeys([*measured, *grid]):
        before_s = emulated(batch, threads).latency_s
        estimate = fitted.predict(batch, threads, before_s)
        measured_s = measured.get((batch, threads))
        cells = ["predicted" if measured_s is None else duration(measured_s)]
        cells += [duration(value) for value in (before_s, estimate.latency_s)]
        interval = f"{duration(estimate.low_s)} to {duration(estimate.high_s)}"
        table.add_row(str(batch), str(threads), *cells, interval)
    out.print(table)
    errors, energy_errors = fitted.errors, fitted.energy_errors
    if errors is not None:
        out.print(
            f"leave-one-out error of {errors.points} points: latency {errors.median:.1%} (median), "
            f"{errors.worst:.1%} (worst)"
        )
    if energy_errors is not None:
        out.print(f"energy {energy_errors.median:.1%} (median), {energy_errors.worst:.1%} (worst)")
