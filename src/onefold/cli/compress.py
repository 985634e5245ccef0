"""`onefold compress`: build variants of a trained model, measure them and select one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import (
    AllowSlowerOption,
    DistillOption,
    HomeOption,
    JsonOption,
    MaxMetricLossOption,
    RuntimeOption,
    TakeOption,
    TrustOption,
    requirements_of,
)
from onefold.cli.recipe_options import with_recipe_options
from onefold.compression.registry import parameters, recipe_of_settings
from onefold.device.catalog import HOST
from onefold.vocabulary import quantities
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Value, to_json
from onefold.vocabulary.variants import Recipe, Variant

if TYPE_CHECKING:
    from onefold.compression.api import CompressionEvent, CompressionResult

PHONE_BATTERY_V = 3.85


def compress(
    model: Annotated[
        Path,
        typer.Argument(help="Folder written by onefold tune --save or onefold train --save, or an ONNX file"),
    ],
    settings: Mapping[str, list[Value]],
    device: Annotated[str, typer.Option(help="Device to measure the variants on")] = HOST,
    optimize_for: Annotated[str, typer.Option(help="What to minimize: size, latency, energy")] = "size",
    max_metric_loss: MaxMetricLossOption = 0.01,
    allow_slower: AllowSlowerOption = "2%",
    take: TakeOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="What a variant has to meet, such as accuracy>=0.9, encoded_bytes<=200kB or latency_s<=2ms; repeatable"
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning after pruning")] = 6,
    distill: DistillOption = 0.0,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Also score each layer pruned alone")] = False,
    samples: Annotated[
        Path | None,
        typer.Option(help="Calibration set for an ONNX file: an .npz file with one array per input, named like it"),
    ] = None,
    runtimes: RuntimeOption = None,
    volts: Annotated[float, typer.Option(help="Battery voltage of the device, to estimate charge")] = PHONE_BATTERY_V,
    save: Annotated[Path | None, typer.Option(help="Write the deployment folder of the selected variant here")] = None,
    save_all: Annotated[
        Path | None, typer.Option(help="Write the deployment folders of all variants into this folder")
    ] = None,
    trust: TrustOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build smaller and faster variants of a trained model, measure them, and select one."""
    from onefold.compression import api

    recipes = recipes_of(settings)
    with nullcontext() if as_json else out.status("opening the model …") as status:

        def on_event(event: CompressionEvent) -> None:
            if status is not None:
                status.update(event.message)

        result = api.compress(
            model,
            recipes,
            device=device,
            optimize_for=optimize_for,  # type: ignore[arg-type]
            options=api.CompressOptions(
                max_metric_loss,
                epochs,
                samples,
                sensitivity,
                quantities.parse_share(allow_slower),
                take,
                distill,
                require=requirements_of(require or []),
                runtimes=tuple(runtimes or ()),
            ),
            save=save,
            save_all=save_all,
            trust=trust,
            home=home,
            on_event=on_event,
        )
    if as_json:
        out.out(json.dumps(to_json(result)))
    else:
        _print_result(result, volts)
    if not result.is_feasible and take is None:
        if save is not None and not as_json:
            out.print(f"nothing is saved in {save}; name a variant with --take to save it in any case", soft_wrap=True)
        raise typer.Exit(1)


def recipes_of(settings: Mapping[str, list[Value]]) -> list[Recipe]:
    """Return every combination of the given settings, each of them also turned off."""
    if not any(settings.values()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise InputError(f"no compression method is given; use one or several of {options}")
    neutral = {name: methods[0].neutral for name, methods in parameters().items()}
    values = [[neutral[name], *given] for name, given in settings.items()]
    recipes = [recipe_of_settings(dict(zip(settings, combination))) for combination in product(*values)]
    return [recipe for recipe in recipes if not recipe.is_plain]


def _print_result(result: CompressionResult, volts: float) -> None:
    out.print(_table(result, volts))
    for name, reason in result.failures.items():
        out.print(f"note: {name}: not built: {reason}", soft_wrap=True)
    for variant in result.variants:
        for note in variant.notes:
            out.print(f"note: {variant.recipe}: {note}", soft_wrap=True)
        if variant.left:
            out.print(f"note: {variant.recipe}: not quantized: {', '.join(variant.left)}", soft_wrap=True)
        if variant.layers:
            out.print(_layer_table(variant))
    if result.sensitivity:
        out.print(f"{result.metric} with one layer pruned alone:")
        for layer, value in sorted(result.sensitivity.items(), key=lambda pair: pair[1]):
            out.print(f"  {layer}  {value:.4g}", soft_wrap=True)
    out.print(f"selected {result.why}", style=None if result.is_feasible else "bold yellow", soft_wrap=True)
    for name, folder in result.folders.items():
        out.print(f"saved {name} in {folder}", soft_wrap=True)
    if result.folder:
        out.print(f"saved in {result.folder}; check it with: onefold serve-check {result.folder}", soft_wrap=True)


def _layer_table(variant: Variant) -> Table:
    table = Table("layer", "precision", "change", "why", box=None, header_style="dim", pad_edge=False)
    for layer in variant.layers:
        table.add_row(layer.layer, layer.precision, quantities.share(layer.change), layer.why)
    table.caption = f"layers of {variant.recipe}, and how much each changes the outputs alone"
    table.caption_justify = "left"
    return table


def _table(result: CompressionResult, volts: float) -> Table:
    variants, metric = [result.plain, *result.variants], result.metric
    table = Table(box=None, header_style="dim", pad_edge=False)
    encodings = list(variants[0].encoded_bytes)
    heads = ("variant", metric, "latency", "energy", "mAh/1000", "size", *encodings, "MFLOP", "useful", "memory")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left")
    for variant in variants:
        joules, charge = variant.energy.joules, variant.charge_mah(volts)
        table.add_row(
            str(variant.recipe),
            f"{variant.metrics[metric]:.4f}",
            quantities.duration(variant.latency_s),
            quantities.joules(joules),
            quantities.MISSING if charge is None else f"{charge:.3g}",
            quantities.size(variant.size_bytes),
            *(quantities.size(variant.encoded_bytes[encoding]) for encoding in encodings),
            f"{variant.flops / 1e6:.3g}",
            f"{variant.useful_flops / 1e6:.3g}",
            quantities.size(variant.memory_bytes),
        )
    for name in result.failures:
        table.add_row(name, *(quantities.MISSING for _ in heads[1:]))
    measured = next((variant for variant in variants if variant.energy.joules is not None), None)
    energy = f"energy {measured.energy.source}; charge at {volts:g} V, estimated" if measured else "energy unknown"
    table.caption = f"latency {variants[0].source.value}, batch size 1; {energy}"
    table.caption_justify = "left"
    return table


command = with_recipe_options(compress, repeatable=True)
