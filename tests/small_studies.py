"""Short-hand for studies in tests: options given flat, trials run inline."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from onefold.study import ParallelismOptions, SearchOptions, Study
from onefold.study.tunable import WorkloadLike
from onefold.vocabulary.budget import Budget

TINY = Budget(trials=6, max_epochs=3, min_data=0.5)


def small_study(workload: WorkloadLike, home: Path, **options: Any) -> Study:
    """Return a study of six short trials without knob tuning, so that results are exactly reproducible.

    Fields of SearchOptions and ParallelismOptions may be given directly.
    """
    options = {"engine": "inline", "budget": TINY, "knobs": "off", **options}
    if "search" in options:
        options["algorithm"] = options.pop("search")
    search = {f.name: options.pop(f.name) for f in fields(SearchOptions) if f.name in options}
    parallelism = {f.name: options.pop(f.name) for f in fields(ParallelismOptions) if f.name in options}
    if parallelism.get("parallel"):
        parallelism["engine"] = "processes"  # inline trials run one at a time
    return Study(
        workload,
        home=home,
        search=SearchOptions(**search),
        parallelism=ParallelismOptions(**parallelism),
        **options,
    )
