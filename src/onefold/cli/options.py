"""Options that several commands have, and the panels that `--help` groups options in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from onefold.serving.space import BATCH_SIZES, ServingSpace
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.preference import Preference, preference
from onefold.vocabulary.requirement import Bound, requirement

# Panels appear in the order of their first option.
BUDGET = "Budget"
OBJECTIVE = "Objective"
SEARCH = "Search"
SERVING = "Serving"
KNOBS = "Knobs"
COMPRESSION = "Compression"
PARALLELISM = "Parallelism"
OUTPUT = "Output"

NO_GUARD = "none"  # the value of --guard that admits every model of the front

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
PreferOption = Annotated[
    str | None,
    typer.Option(
        "--prefer",
        help="Of the Pareto front, hand over the best model by this goal, or by weights such as "
        "accuracy=2,latency_s=1 (default: the knee)",
        rich_help_panel=OBJECTIVE,
    ),
]
GuardOption = Annotated[
    list[str] | None,
    typer.Option(
        "--guard",
        help='Bound on what is handed over of the front, such as "accuracy>=best-10%", or none; repeatable '
        "(default: the workload's own metric within 5% of the best)",
        rich_help_panel=OBJECTIVE,
    ),
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
RuntimeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime",
        help="Also convert the model for this runtime and compare it: openvino, ncnn, litert, executorch, pytorch, "
        "all; repeatable",
        rich_help_panel=SERVING,
    ),
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
        help="off; in-loop: fork trials into compressed ones; after: compress the ten best trials",
        rich_help_panel=COMPRESSION,
    ),
]
DistillOption = Annotated[
    float,
    typer.Option(
        "--distill",
        help="Weight of the uncompressed network's class scores in the loss of fine-tuning, such as 0.5",
        rich_help_panel=COMPRESSION,
    ),
]
TakeOption = Annotated[
    str | None,
    typer.Option(
        "--take",
        help="Select this variant whatever it costs, such as int8, sparsity-0.8-int8 or plain",
        rich_help_panel=COMPRESSION,
    ),
]
AllowSlowerOption = Annotated[
    str,
    typer.Option("--allow-slower", help="How much slower a variant may be, such as 10%", rich_help_panel=COMPRESSION),
]
MaxMetricLossOption = Annotated[
    float,
    typer.Option(
        "--max-metric-loss", help="Largest loss of the workload's metric to accept", rich_help_panel=COMPRESSION
    ),
]


def preference_of(prefer: str | None, guard: list[str]) -> Preference | None:
    """Return the preference that the options describe; None without them."""
    if prefer is None and not guard:
        return None
    if NO_GUARD in guard and len(guard) > 1:
        raise InputError(
            f"--guard none admits every model of the front; leave the other guards out, got {', '.join(guard)}"
        )
    bounds: dict[str, tuple[Bound, ...]] = {}
    for metric, bound in [] if guard == [NO_GUARD] else map(requirement, guard):
        bounds[metric] = (*bounds.get(metric, ()), bound)
    listed = {metric: each if len(each) > 1 else each[0] for metric, each in bounds.items()}
    return Preference(preference(prefer).weights, listed if guard else None)


def requirements_of(texts: list[str]) -> dict[str, Bound]:
    """Return the bounds of `--require`, one for each metric."""
    bounds: dict[str, Bound] = {}
    for text in texts:
        metric, bound = requirement(text)
        if metric in bounds:
            raise InputError(
                f"--require takes one bound on each metric, got {metric}{bounds[metric]} and {text}; "
                "leave one of them out"
            )
        bounds[metric] = bound
    return bounds


def space_up_to(largest_batch: int | None) -> ServingSpace | None:
    """Return the serving space with batches up to `largest_batch`; None for the default space."""
    if largest_batch is None:
        return None
    smaller = [size for size in BATCH_SIZES if size < largest_batch]
    return ServingSpace(batch_sizes=(*smaller, largest_batch))
