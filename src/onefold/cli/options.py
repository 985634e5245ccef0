"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold.serving.space import BATCH_SIZES, ServingSpace

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of studies and devices (default: $ONEFOLD_HOME or the user's data folder)"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for machines")]
GoalOption = Annotated[
    str, typer.Option("--scenario-goal", help="What a scenario's responses are judged by: mean, p99")
]
KnobsOption = Annotated[
    str, typer.Option("--knobs", help="Tune system knobs while training: on (recall, else probe), probe, recall or off")
]
KnobsForOption = Annotated[
    str, typer.Option("--optimize-knobs-for", help="What knobs minimize per training step: time or energy")
]
ReducedOption = Annotated[
    bool, typer.Option("--reduced-precision", help="Let knobs reduce the precision unless the loss rises")
]
CompressOption = Annotated[
    str,
    typer.Option(
        "--compress", help="in-loop: search how to compress along with the rest; after: compress the best ten; off"
    ),
]
LargestBatchOption = Annotated[
    int | None, typer.Option("--largest-batch", min=1, help="The largest batch to serve in (default: 100)")
]


def space_up_to(largest_batch: int | None) -> ServingSpace | None:
    """The serving space whose batches are no larger; None for all of it."""
    if largest_batch is None:
        return None
    smaller = [size for size in BATCH_SIZES if size < largest_batch]
    return ServingSpace(batch_sizes=(*smaller, largest_batch))
