"""`onefold compress`: variants of a trained model, and the one to take."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.device.catalogue import HOST
from onefold.vocabulary import quantities
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import to_json
from onefold.vocabulary.variants import Recipe, Variant

VOLTS = 3.85  # of a phone's battery


def compress(
    model: Annotated[
        Path,
        typer.Argument(help="A folder that onefold tune … --save or onefold train … --save wrote, or an ONNX file"),
    ],
    sparsity: Annotated[
        list[float] | None, typer.Option(help="The share of weights that become zero, such as 0.8; repeatable")
    ] = None,
    channels: Annotated[
        list[float] | None, typer.Option(help="The share of channels to take out, such as 0.5; repeatable")
    ] = None,
    precision: Annotated[list[str] | None, typer.Option(help="int8, int8-dynamic, fp16; repeatable")] = None,
    device: Annotated[str, typer.Option(help="Where it will be served")] = HOST,
    aim: Annotated[str, typer.Option("--for", help="What the choice makes small: size, latency, energy")] = "size",
    drop: Annotated[float, typer.Option(help="How much of the metric may be lost")] = 0.01,
    epochs: Annotated[int, typer.Option(help="Epochs of training after pruning")] = 6,
    sensitive: Annotated[bool, typer.Option("--sensitivity", help="Also prune each layer by itself")] = False,
    samples: Annotated[
        Path | None,
        typer.Option(help="For an ONNX file: an .npz of real inputs, to calibrate on and to compare answers"),
    ] = None,
    volts: Annotated[float, typer.Option(help="Of the device's battery, to tell its charge")] = VOLTS,
    save: Annotated[Path | None, typer.Option(help="Make a deployment folder of the chosen variant here")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make smaller and faster variants of a trained model, measure them, and choose one."""
    from onefold.compression.api import compress as make

    recipes = recipes_of(sparsity or [], channels or [], precision or [])
    with nullcontext() if as_json else out.status("opening the model …") as status:

        def tell(said: str) -> None:
            if status is not None:
                status.update(said)

        found = make(
            model, recipes, device=device, aim=aim, drop=drop, epochs=epochs, sensitive=sensitive,
            samples=samples, save=save, home=home, tell=tell,
        )  # fmt: skip
    if as_json:
        out.out(json.dumps(to_json(found)))
        return
    out.print(_table([found.plain, *found.variants], found.metric, volts))
    for one in found.variants:
        for note in one.notes:
            out.print(f"note: {one.recipe}: {note}", soft_wrap=True)
        if one.left:
            out.print(f"note: {one.recipe}: not quantised: {', '.join(one.left)}", soft_wrap=True)
    if found.sensitivity:
        out.print(f"{found.metric} when one layer alone is pruned:")
        for layer, value in sorted(found.sensitivity.items(), key=lambda pair: pair[1]):
            out.print(f"  {layer}  {value:.4g}", soft_wrap=True)
    out.print(f"take {found.why}", soft_wrap=True)
    if found.folder:
        out.print(f"saved in {found.folder}; check it with: onefold serve-check {found.folder}", soft_wrap=True)


def recipes_of(sparsities: list[float], channels: list[float], precisions: list[str]) -> list[Recipe]:
    """Pruned or not, with fewer channels or not, at each precision: all that was asked for, together and apart."""
    if not (sparsities or channels or precisions):
        raise InputError("say how to compress: --sparsity 0.8, --channels 0.5, --precision int8, or several of them")
    every = product([0.0, *sparsities], [0.0, *channels], ["fp32", *precisions])
    return [recipe for recipe in (Recipe(*one) for one in every) if not recipe.is_plain]


def _table(variants: list[Variant], metric: str, volts: float) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    heads = ("variant", metric, "latency", "energy", "mAh/1000", "size", "deflate", "zstd", "MFLOP", "useful", "memory")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for one in variants:
        joules, charge = one.energy.joules, one.charge_mah(volts)
        table.add_row(
            str(one.recipe),
            f"{one.metrics[metric]:.4f}",
            quantities.duration(one.latency_s),
            quantities.NOTHING if joules is None else quantities.joules(joules),
            quantities.NOTHING if charge is None else f"{charge:.3g}",
            quantities.size(one.size_bytes),
            quantities.size(one.encoded_bytes["deflate"]),
            quantities.size(one.encoded_bytes["zstd"]),
            f"{one.flops / 1e6:.3g}",
            f"{one.useful_flops / 1e6:.3g}",
            quantities.NOTHING if one.memory_bytes is None else quantities.size(one.memory_bytes),
        )
    known = next((one for one in variants if one.energy.joules is not None), None)
    energy = f"energy {known.energy.source}; charge at {volts:g} V, estimated" if known else "energy unknown"
    table.caption = f"latency {variants[0].source.value}, one sample at a time; {energy}"
    table.caption_justify = "left"
    return table
