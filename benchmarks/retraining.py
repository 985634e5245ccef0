"""Retraining in the setting of the MPOptimizer paper: promises kept in 200 cases, and the gain against its comparators.

ResNet-50, MobileNetV2 and ViT-Tiny (patches of 8) in their ImageNet layout, with images of 64 pixels (CIFAR-10,
upsampled inside the network). Each is trained on clean images by a study, whose folder is retrained as it was saved:
with weights, model.onnx, reference set and serving settings. New data are 1,250 images (MobileNetV2: 2,500) that the
model has not seen, of one of the 15 domains of the paper's table 4 (14 corruptions of CIFAR-10-C, and none).

Comparison: 3 models x 15 domains at severity 5 x 7 strategies: onefold, `fixed` (the plan that one would choose by
hand, with all else that onefold does), and the paper's static, DGC, DGA, Sage and Bayesian optimization. All get the
same memory limit (ResNet-50 1 GB, MobileNetV2 500 MB, ViT 600 MB), window (60 s, 45 s, 60 s) and a new home. A strategy
whose plan does not fit gains nothing. Time until the first update is counted from the start of the command, that
of a smaller batch by which onefold checks the memory of a plan included; the table also has the begin of the first
micro-window, which comes after it.

Promises: onefold's 45 cases of the comparison and 160 more, with severities 3 to 5, limits of 500 MB to 2 GB, windows
of 36 to 75 s, half of them beside a process that computes on the same core, half with the history of earlier cases.
Each case is the real command, on one core, in a copy of the folder that it updates in place. Measured from outside:
the peak memory of all its processes (high-water marks and sums, polled every few milliseconds), and its whole life.
The served model before and after is compared on 1,000 clean and 1,000 new test images that no model has seen. Worse
means that accuracy fell by more than 0.01, the documented tolerance, on clean images or by more than nothing on new
ones, plus three standard errors: of the difference on the test images, and on the samples by which the retraining
decided (250 to 500). A refusal counts if the limit is in fact below the least memory, or the window below the time,
that a retraining needs.

Finished cases are rows of results/retraining_rows.jsonl, with their machine: a run that was interrupted, or that
`--minutes` ended, continues there, also on another machine, which first trains the three models again (10 to 30
minutes of a core each). Where git does not know the revision, $ONEFOLD_REVISION names it. Cases are ordered so that
each prefix is balanced over models, domains and strategies; the comparison counts the models and domains for which all
strategies are done. All in all about five hours on two cores.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from claims import RESULTS, argument_parser, conclude, machine, table
from retrainings import verdicts
from retrainings.case_run import CaseRunner, Row
from retrainings.cases import Case, plan_cases
from retrainings.finished_cases import FinishedCases

MODEL_VERSION = 1  # incremented when retrainings/networks.py trains otherwise; each version has a folder of models


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="start no case that might end later")
    parser.add_argument("--part", default="1/1", help="run only this part of the cases, such as 2/3")
    parser.add_argument("--models", nargs="+", help="run only cases of these models")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="number of parallel cases")
    parser.add_argument("--train-only", action="store_true", help="only train the models")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "onefold" / "benchmarks")
    options = parser.parse_args()
    runner = CaseRunner(options.folder / f"retraining-{MODEL_VERSION}")
    with tempfile.TemporaryDirectory() as temporary:
        finished = FinishedCases((Path(temporary) if options.quick else RESULTS) / "retraining_rows.jsonl")
        cases = plan_cases(quick=options.quick)
        part, parts = map(int, options.part.split("/"))
        left = [case for case in cases[part - 1 :: parts] if case.key not in finished.rows]
        left = [case for case in left if not options.models or case.model in options.models]
        cores = Cores(options.cores)
        cores.share(runner.train, list(dict.fromkeys(case.model for case in left)))
        if options.train_only:
            return
        run(runner, finished, left, cores, options.minutes)
        keys = {case.key for case in cases}
        report([row for key, row in finished.rows.items() if key in keys], cases, quick=options.quick)


class Cores:
    """Runs calls in parallel, each on a core of its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: Queue[int] = Queue()
        for core in sorted(os.sched_getaffinity(0))[:count]:
            self._free.put(core)

    def share(self, call: Callable[[Any, int], None], values: Sequence[Any]) -> None:
        """Call with each of the values and a core that is free."""

        def run(value: Any) -> None:
            core = self._free.get()
            try:
                call(value, core)
            finally:
                self._free.put(core)

        with ThreadPoolExecutor(self.count) as pool:
            calls = [pool.submit(run, value) for value in values]
            try:
                for future in calls:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def run(runner: CaseRunner, finished: FinishedCases, cases: list[Case], cores: Cores, minutes: float | None) -> None:
    """Run the cases that are left, until the time is over."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    origin = {"revision": _revision(), "machine": _machine()}

    def measure(case: Case, core: int) -> None:
        if deadline is not None and time.monotonic() + 2 * case.window_s > deadline:
            return
        row = {**runner.run(case, core), **origin}
        finished.add(row)
        print(f"{len(finished.rows)}: {_summary(row)}", flush=True)

    cores.share(measure, cases)


def report(rows: list[Row], cases: list[Case], *, quick: bool) -> None:
    """Print tables and claims of what is done, and write them."""
    strategies = sorted({case.strategy for case in cases})
    complete = verdicts.complete_comparisons(rows, strategies)
    by_strategy, by_model = verdicts.strategy_rows(complete), verdicts.model_rows(complete)
    table(by_strategy)
    table(by_model)
    print(f"{len(rows)} of {len(cases)} cases are done, {len(complete)} of them count in the comparison", flush=True)
    figures = {
        "cases": len(rows), "planned": len(cases), "strategies": by_strategy, "models": by_model,
        "revisions": dict(Counter(row["revision"] for row in rows)),
        "machines": dict(Counter(row["machine"] for row in rows)),
    }  # fmt: skip
    conclude("retraining", verdicts.claims_of(rows, complete, quick=quick), figures, quick=quick)


def _summary(row: Row) -> str:
    parts = [row["key"], f"{row['wall_s']:.1f} s", f"{row['peak_mb']:.0f} MB"]
    if row["status"] != 0:
        return ", ".join([*parts, f"status {row['status']}", row["said"]])
    gains = [f"{data} {100 * verdicts.change(row, data):+.1f}" for data in ("old", "new")]
    return ", ".join([*parts, *gains, f"first update after {row['first_update_s']} s", f"plan {row['plan']}"])


def _revision() -> str:
    """Return the revision of Onefold that is measured; where git does not know it, $ONEFOLD_REVISION."""
    process = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS, capture_output=True, text=True)
    return process.stdout.strip() or os.environ.get("ONEFOLD_REVISION", "unknown")


def _machine() -> str:
    """Describe this machine in a line."""
    figures = machine()
    return f"{figures['processor']}, {figures['cores']} cores, {figures['memory_bytes'] / 2**30:.0f} GiB"


if __name__ == "__main__":
    main()
