"""`onefold shift`: data as a deployed model may meet them, to try retraining on."""

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
        str | None, typer.Argument(help="FILE.py[:Class], package.module:Class, or a ready workload")
    ] = None,
    corruption: Annotated[str | None, typer.Option(help="What happens to its pictures; --list shows what can")] = None,
    severity: Annotated[int, typer.Option(help="How much of it, from 1 to 5")] = 3,
    save: Annotated[Path | None, typer.Option(help="Make a folder of new data here")] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same pictures")] = 0,
    listed: Annotated[bool, typer.Option("--list", help="Show the corruptions")] = False,
    as_json: JsonOption = False,
) -> None:
    """Corrupt the pictures of a workload, and write them as a folder of new data."""
    import numpy as np

    from onefold.baselines.corruptions import check
    from onefold.baselines.shifted_datasets import corrupted_data
    from onefold.datasets.new_data import check_destination, write_data

    if listed:
        _show_corruptions(as_json)
        return
    if workload is None or corruption is None or save is None:
        raise InputError(
            "say whose pictures, what happens to them and where to put them: onefold shift digits --corruption fog "
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
        said = {"folder": str(save), "corruption": corruption, "severity": severity, "seed": seed}
        out.out(json.dumps({**said, "samples": samples, "shape": [channels, height, width], "change": change}))
        return
    counts = ", ".join(f"{count:,} for {name}" for name, count in samples.items())
    out.print(f"{corruption}, severity {severity}, on pictures of {height}x{width} pixels: {counts}", soft_wrap=True)
    out.print(f"values changed by {change:.1%} of the range of the clean ones, on average", soft_wrap=True)
    out.print("what each channel spans in the clean training part was taken as 0 to 255", soft_wrap=True)
    out.print(f"saved in {save}; retrain a model on it with: onefold retrain FOLDER --data {save}", soft_wrap=True)


def _show_corruptions(as_json: bool) -> None:
    from onefold.baselines.corruptions import FAMILIES

    if as_json:
        rows = [
            {"corruption": kind.name, "family": family, "what": kind.what}
            for family, kinds in FAMILIES.items()
            for kind in kinds
        ]
        out.out(json.dumps(rows))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("corruption", "family", "what happens"):
        table.add_column(column)
    for family, kinds in FAMILIES.items():
        for kind in kinds:
            table.add_row(kind.name, family, kind.what)
    out.print(table)
