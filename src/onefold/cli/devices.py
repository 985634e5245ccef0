"""`onefold devices`: the catalogue, and how a board becomes part of it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.cli.serving import open_model
from onefold.device import STANDARD, open_session
from onefold.device.catalogue import HOST, device, devices, read_devices, save_device
from onefold.device.emulator_correction import EmulatorFit, fit_emulator, read_board_measurements
from onefold.device.host import calibrate as calibrate_host
from onefold.device.host import find_device
from onefold.device.host import host as this_machine
from onefold.device.probe import device_from_probe, probe_source
from onefold.serving.space import ServingSpace
from onefold.study import Home
from onefold.vocabulary.errors import DeviceError, TooLarge
from onefold.vocabulary.quantities import duration, number, size
from onefold.vocabulary.records import to_json
from onefold.vocabulary.serving import Served, ServingPoint

app = typer.Typer(help="The devices that models are tuned for.", invoke_without_command=True)


@app.callback()
def catalogue(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """All devices: this machine, the catalogue, and those that you added."""
    if context.invoked_subcommand is not None:
        return
    found = devices(Home(home).devices)
    if as_json:
        out.out(json.dumps({name: to_json(each) for name, each in found.items()}))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("device", "cores", "GFLOP/s", "GB/s", "memory", "watts", "figures from", "what it is"):
        table.add_column(column, justify="left" if column in ("device", "figures from", "what it is") else "right")
    for each in found.values():
        watts = f"{number(each.idle_w)}-{number(each.busy_w)}"
        memory = size(each.memory_bytes)
        row = [each.name, str(each.cores), number(each.gflops), number(each.bandwidth_gbps), memory, watts]
        table.add_row(*row, each.source, each.title)
    out.print(table)
    out.print("\nGFLOP/s is of one core. This machine is called host; its figures are measured when first needed.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The device")], home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Everything that is known about a device."""
    found = find_device(name, Home(home).devices)
    if as_json:
        out.out(json.dumps(to_json(found)))
        return
    for key, value in to_json(found).items():
        if value not in (None, ""):
            out.print(f"{key:16} {number(value) if isinstance(value, (int, float)) else value}", soft_wrap=True)


@app.command()
def calibrate(
    name: Annotated[str, typer.Argument(help="The device: host")] = HOST,
    seconds: Annotated[float, typer.Option(help="How long to measure")] = 4.0,
    home: HomeOption = None,
) -> None:
    """Measure this machine's compute, bandwidth and overhead, from which other devices are carried over."""
    place = Home(home)
    if name != HOST:
        device(name, place.devices)
        raise DeviceError(
            f"{name} must be measured where it is: write the probe with `onefold devices probe > probe.py`, run it "
            f"there, and bring its answer back with `onefold devices add answer.json --name {name}`"
        )
    out.print(f"measuring for about {duration(seconds)}; keep the machine quiet …")
    found = calibrate_host(seconds)
    path = save_device(found, place.devices)
    figures = f"{number(found.gflops)} GFLOP/s a core, {number(found.bandwidth_gbps)} GB/s"
    out.print(f"{figures}, {number(found.overhead_us)} µs an operator; saved in {path}", soft_wrap=True)


@app.command()
def probe() -> None:
    """Print a stand-alone program that measures a board: onefold devices probe > probe.py."""
    out.out(probe_source(), end="")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="What the probe printed (JSON), or a TOML file of devices")],
    name: Annotated[str | None, typer.Option(help="What to call the board")] = None,
    like: Annotated[str | None, typer.Option(help="A device whose power to take where the probe found none")] = None,
    idle_w: Annotated[float | None, typer.Option(help="Watts of the idle board")] = None,
    busy_w: Annotated[float | None, typer.Option(help="Watts with all cores busy")] = None,
    home: HomeOption = None,
) -> None:
    """Make a measured board, or devices from a file, part of the catalogue."""
    place = Home(home)
    if file.suffix == ".toml":
        found = read_devices(file)
    else:
        model = find_device(like, place.devices) if like else None
        found = [device_from_probe(file, name, idle_w=idle_w, busy_w=busy_w, like=model)]
    for each in found:
        out.print(f"{each.name}: saved in {save_device(each, place.devices)}", soft_wrap=True)


@app.command("fit")
def fit_to(
    name: Annotated[str, typer.Argument(help="The device that was measured")],
    model: Annotated[Path, typer.Option(help="The ONNX model that was measured there")],
    points: Annotated[Path, typer.Option(help="CSV with the columns batch,threads,latency_s[,energy_j]")],
    save: Annotated[bool, typer.Option(help="Correct the device's figures by the fit")] = True,
    home: HomeOption = None,
) -> None:
    """Fit the emulator of a device to measured points of a model, and say how far off it was."""
    place = Home(home)
    if name == HOST:
        raise DeviceError("this machine is measured and not emulated: use onefold devices calibrate")
    target, measured = device(name, place.devices), read_board_measurements(points)
    host = this_machine(place.devices)
    said: dict[tuple[int, int], Served] = {}
    space = ServingSpace().on(target.cores)
    rest = [(batch, threads) for threads in space.threads for batch in space.batch_sizes]
    with open_session(target, host) as session, out.status(f"emulating {name} …"):
        open_model(session, model)
        for batch, threads in [*((point.batch, point.threads) for point in measured), *rest]:
            key = batch, min(threads, session.threads)
            with suppress(TooLarge):  # what does not fit is not predicted
                said[key] = said.get(key) or session.serve(model, ServingPoint(*key), STANDARD)
        wanted = [(point.batch, min(point.threads, session.threads)) for point in measured]
        if unknown := [batch for batch, threads in wanted if (batch, threads) not in said]:
            raise DeviceError(f"a batch of {unknown[0]} does not fit into the memory that {name} is said to have")
        rest = [(batch, threads) for batch, threads in rest if (batch, min(threads, session.threads)) in said]

    def emulated(batch: int, threads: int) -> Served:
        known = said.get((batch, threads))  # with more threads than this machine has cores: as with all of them
        return known if known is not None else said[batch, max(t for b, t in said if b == batch)]

    found = fit_emulator(
        measured,
        lambda batch, threads: emulated(batch, threads).latency_s,
        lambda batch, threads: emulated(batch, threads).energy.joules or 0.0,
    )
    _show_fit(found, emulated, rest)
    if save:
        # One figure for all points: the middle of what they say. The table above has what it is at each of them.
        ratios = [math.log(point.latency_s / emulated(point.batch, point.threads).latency_s) for point in measured]
        scale = math.exp(statistics.median(ratios))
        corrected = replace(
            target,
            gflops=target.gflops / scale,
            bandwidth_gbps=target.bandwidth_gbps / scale,
            overhead_us=target.overhead_us * scale,
            source="fitted",
            note=f"fitted to {len(measured)} points of {model.name}; before: {target.note}",
        )
        out.print(f"figures corrected by {1 / scale:.3g}x; saved in {save_device(corrected, place.devices)}")


def _show_fit(found: EmulatorFit, emulated: Callable[[int, int], Served], rest: Sequence[tuple[int, int]]) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("batch", "threads", "measured", "emulated", "fitted", "95 % interval"):
        table.add_column(column, justify="right")
    measured = {(point.batch, point.threads): point.latency_s for point in found.points}
    for batch, threads in dict.fromkeys([*measured, *rest]):
        before = emulated(batch, threads).latency_s
        after = found.predict(batch, threads, before)
        known = measured.get((batch, threads))
        cells = ["predicted" if known is None else duration(known)]
        cells += [duration(value) for value in (before, after.latency_s)]
        interval = f"{duration(after.low_s)} to {duration(after.high_s)}"
        table.add_row(str(batch), str(threads), *cells, interval)
    out.print(table)
    if found.errors is not None:
        out.print(
            f"left out one by one, {found.errors.points} points are predicted to within {found.errors.median:.1%} "
            f"(median) and {found.errors.worst:.1%} (worst)"
        )
    if found.energy_errors is not None:
        out.print(f"and their energy to within {found.energy_errors.median:.1%} and {found.energy_errors.worst:.1%}")
