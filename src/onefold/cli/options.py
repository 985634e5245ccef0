"""Options that several commands have, and the panels that `--help` groups options in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from onefold.serving.space import BATCH_SIZES, ServingSpace

# Panels appear in the order of their first option.
BUDGET = "Budget"
OBJECTIVE = "Objective"
SEARCH = "Search"
SERVING = "Serving"
KNOBS = "Knobs"
COMPRESSION = "Compression"
PARALLELISM = "Parallelism"
OUTPUT = "Output"

WorkloadArgument = Annotated[
    str, typer.Argument(help="FILE.py[:Class], package.module:Class, or a bundled workload (onefold workloads)")
]
StudyArgument = Annotated[str, typer.Argument(help="The name of a study (onefold list)")]

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Import the workload of a model folder that this home did not write")
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="Folder of studies and devices (default: $ONEFOLD_HOME or the user's data folder)",
        rich_help_panel=OUTPUT,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON", rich_help_panel=OUTPUT)]
SaveOption = Annotated[
    Path | None, typer.Option("--save", help="Copy the best model into this folder", rich_help_panel=OUTPUT)
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the study (default: workload and number)", rich_help_panel=OUTPUT)
]
AcceleratorOption = Annotated[
    str, typer.Option("--accelerator", help="Where to train: cpu, cuda, cuda:1", rich_help_panel=PARALLELISM)
]
ParallelOption = Annotated[
    int | None, typer.Option("--parallel", help="Parallel trials (default: measured)", rich_help_panel=PARALLELISM)
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads per trial, with --parallel", rich_help_panel=PARALLELISM)
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Memory limit of a trial, such as 2GB", rich_help_panel=PARALLELISM)
]
GoalOption = Annotated[
    str,
    typer.Option("--scenario-goal", help="Response time to minimize in a scenario: mean, p99", rich_help_panel=SERVING),
]
ScenarioOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="How requests arrive: single-stream, multi-stream:8@20, server:100, offline; repeatable",
        rich_help_panel=SERVING,
    ),
]
LargestBatchOption = Annotated[
    int | None,
    typer.Option("--largest-batch", min=1, help="Largest batch to serve (default: 100)", rich_help_panel=SERVING),
]
OptimizeServingOption = Annotated[
    Literal["latency", "throughput", "energy"],
    typer.Option(
        "--optimize-serving-for",
        help="What to choose serving points for",
        rich_help_panel=SERVING,
    ),
]
KnobsOption = Annotated[
    str,
    typer.Option(
        "--knobs",
        help="Tune system knobs while training: on (recall, else probe), probe, recall or off",
        rich_help_panel=KNOBS,
    ),
]
OptimizeKnobsOption = Annotated[
    Literal["time", "energy"],
    typer.Option(
        "--optimize-knobs-for",
        help="What knobs minimize per training step",
        rich_help_panel=KNOBS,
    ),
]
ReducedPrecisionOption = Annotated[
    bool,
    typer.Option(
        "--reduced-precision",
        help="Let knobs reduce the precision unless the loss rises",
        rich_help_panel=KNOBS,
    ),
]
CompressOption = Annotated[
    str,
    typer.Option(
        "--compress",
        help="off; in-loop: search compression with everything else; after: compress the ten best trials",
        rich_help_panel=COMPRESSION,
    ),
]


def space_up_to(largest_batch: int | None) -> ServingSpace | None:
    """Return the serving space with batches up to `largest_batch`; None for the default space."""
    if largest_batch is None:
        return None
    smaller = [size for size in BATCH_SIZES if size < largest_batch]
    return ServingSpace(batch_sizes=(*smaller, largest_batch))
