"""`onefold shift`: write corrupted images of a workload as new data, to try retraining on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import JsonOption
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.workload_reference import load


def shift(
    workload: Annotated[
        str | None, typer.Argument(help="FILE.py[:Class], package.module:Class, or a bundled workload")
    ] = None,
    corruption: Annotated[str | None, typer.Option(help="Image corruption; --list shows all")] = None,
    severity: Annotated[int, typer.Option(help="Severity of the corruption, 1 to 5")] = 3,
    save: Annotated[Path | None, typer.Option(help="Folder to write the new data to")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruption")] = 0,
    listed: Annotated[bool, typer.Option("--list", help="List the corruptions")] = False,
    as_json: JsonOption = False,
) -> None:
    """Corrupt the images of a workload and write them as a folder of new data."""
    import numpy as np

    from onefold.baselines.corruptions import check
    from onefold.baselines.shifted_datasets import corrupted_data
    from onefold.datasets.new_data import check_destination, write_data

    if listed:
        _show_corruptions(as_json)
        return
    if workload is None or corruption is None or save is None:
        raise InputError(
            "a workload, --corruption and --save are required, for example: onefold shift digits --corruption fog "
            "--save new; onefold shift --list shows the corruptions"
        )
    check(corruption, severity, seed)
    check_destination(save)
    clean = load(workload).data()
    data = corrupted_data(clean, corruption, severity, seed)
    write_data(save, data)
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    samples = {name: len(part[-1]) for name, part in parts.items() if part is not None}
    before, after = np.asarray(clean.train[0]), np.asarray(data.train[0])
    channels, height, width = after.shape[1:]
    change = float(np.abs(after - before).mean() / max(float(np.ptp(before)), 1e-12))
    if as_json:
        settings = {"folder": str(save), "corruption": corruption, "severity": severity, "seed": seed}
        out.out(json.dumps({**settings, "samples": samples, "shape": [channels, height, width], "change": change}))
        return
    counts = ", ".join(f"{count:,} for {name}" for name, count in samples.items())
    out.print(f"{corruption}, severity {severity}, images of {height}x{width} pixels: {counts}", soft_wrap=True)
    out.print(f"mean absolute change {change:.1%} of the value range of the clean images", soft_wrap=True)
    out.print("the value range of each channel in the clean training split was mapped to 0 to 255", soft_wrap=True)
    out.print(f"saved in {save}; retrain a model on it with: onefold retrain FOLDER --data {save}", soft_wrap=True)


def _show_corruptions(as_json: bool) -> None:
    from onefold.baselines.corruptions import FAMILIES

    if as_json:
        rows = [
            {"corruption": corruption.name, "family": family, "what": corruption.description}
            for family, corruptions in FAMILIES.items()
            for corruption in corruptions
        ]
        out.out(json.dumps(rows))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("corruption", "family", "effect"):
        table.add_column(column)
    for family, corruptions in FAMILIES.items():
        for corruption in corruptions:
            table.add_row(corruption.name, family, corruption.description)
    out.print(table)
