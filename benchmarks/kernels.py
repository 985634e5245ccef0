"""Kernels of three networks: how much the survey and the cold filter save, and how fast the kernels are.

The networks are a small CNN, a MobileNet-like and a ResNet-18-like one, all at 32x32 pixels with a batch size of 1. All
tuning is for one thread of this machine unless a row says otherwise: on two shared cores, two threads cannot be timed
to two percent. Energy comes from the processor's counters, or is modelled from CPU seconds if there are none.

MetaSchedule tunes with its own task scheduler, its own evolutionary search with default sizes and its own cost model,
with our warm builder and runner, in two settings: with its default batches of 64 candidates and one batch for each
operator, and with as many candidates and as small batches as Onefold, which takes it longer per candidate. The latency
to reach is MetaSchedule's final one, in each setting, and either tool is charged up to the first batch or round after
which the whole model is as fast. MetaSchedule's models are compiled from its records afterwards, at no charge. The
claims are about the setting that is better for MetaSchedule. Stock MetaSchedule is measured on a few candidates of one
operator with each batch size, and charged its time per candidate for the candidates up to the same point.

Contention distorts latencies, so the library of every round is kept, and at the end all libraries of a model are timed
again in turns, in random order. The minimum of a library's latencies is compared, since contention only ever increases
it.

With history: the two other networks were tuned before. Without the filter: the same survey, every proposal measured;
its LOESS fit decides which candidates of both are cold. Together: the three models in one survey, each with the latency
as its goal that it reached by itself (timed again, like all that is compared), against each model by itself up to the
same latencies. Killed: a real command, `kill -9` in the middle, and the same command again. At the end all runtimes are
timed in turns: onnxruntime with its default, spinning threads, which everything is compared with, and with sleeping
threads. TVM and onnxruntime are timed through the call that serves, `deploy.load(folder)(inputs)`, in a process each;
torch is called with a tensor.

With `--state FOLDER`, an interrupted run continues with its first unfinished section.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from claims import argument_parser, conclude, table
from claims.journal import Journal, open_journal
from kernel_comparison import bars, figures
from kernel_comparison.curves import Curves, time_checkpoints
from kernel_comparison.figures import Row, metaschedule_run
from kernel_comparison.interruption import kill_and_rerun
from kernel_comparison.metaschedule import DEFAULT_BATCH, seconds_per_candidate, tune_with_metaschedule
from kernel_comparison.networks import NETWORKS, Workspace
from kernel_comparison.runtimes import compare_runtimes
from kernel_comparison.tuning import (
    BATCH,
    COLD_START,
    HISTORY,
    NO_FILTER,
    TOGETHER,
    Checkpoint,
    checkpoints,
    filter_precision,
    run_name,
    tune,
    tune_together,
)

from onefold.kernels.kernel_library import LIBRARY
from onefold.vocabulary.kernels import CompileResult

METHOD_VERSION = 2  # counted up when figures are no longer comparable with earlier ones
CANDIDATES_PER_OPERATOR, QUICK_CANDIDATES_PER_OPERATOR = 16, 8  # on average
TWO_THREADS = "two threads"
STOCK_CANDIDATES = {DEFAULT_BATCH: 64, BATCH: 16}  # by batch size


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--state", type=Path, help="folder of the finished sections; by default a new one")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # MetaSchedule logs every step
    with open_journal(options.state, quick=options.quick) as journal:
        sections = KernelSections(journal, quick=options.quick)
        for network in sections.networks:
            sections.tune_both(network)
        if not options.quick:
            sections.tune_with_history()
            sections.tune_together()
        curves = {network: sections.time_curves(network) for network in sections.networks}
        stock = [] if options.quick else sections.stock_metaschedule()
        killed = journal.section("killed and run again", dict, partial(kill_and_rerun, sections.workspace, "small"))
        runtimes = [row for network in sections.networks for row in sections.compare_runtimes(network)]
        precision = sections.filter_precision()
    matched = [
        figures.matched(network, batch, curves[network]) for network in curves for batch in sections.batches
    ]  # fmt: skip
    runs = sections.runs
    cold = [figures.cold_cost(name, runs[name][COLD_START], runs[name][NO_FILTER]) for name in sections.networks]
    recalled = [] if options.quick else [figures.recalled(network, curves[network]) for network in curves]
    joint = {} if options.quick else figures.joint(curves, sections.goals_s)
    for rows in (matched, recalled, cold, runtimes):
        table(rows)
    claims = [
        *bars.metaschedule_claims(matched, stock, BATCH),
        *bars.filter_claims(cold, precision),
        *(bars.history_claims(recalled) if recalled else []),
        *(bars.joint_claims(joint) if joint else []),
        *bars.interruption_claims(killed),
        *bars.runtime_claims(runtimes),
    ]
    content = {
        "metaschedule": matched, "with history": recalled, "together": joint, "stock metaschedule": stock,
        "killed": killed, "cold candidates": cold, "filter": precision, "runtimes": runtimes, "curves": curves,
        "energy": runs["small"][COLD_START].spent.source,
    }  # fmt: skip
    conclude("kernels", claims, content, quick=options.quick)


class KernelSections:
    """The sections of the benchmark; each is run once and kept in the journal."""

    def __init__(self, journal: Journal, *, quick: bool) -> None:
        self.journal = journal
        self.networks = ["small"] if quick else list(NETWORKS)
        self.batches = (DEFAULT_BATCH,) if quick else (DEFAULT_BATCH, BATCH)
        self.candidates_per_operator = QUICK_CANDIDATES_PER_OPERATOR if quick else CANDIDATES_PER_OPERATOR
        self.workspace = Workspace(journal.folder, self.networks)
        self.runs: dict[str, dict[str, CompileResult]] = {network: {} for network in self.networks}
        self.metaschedule: dict[str, dict[int, tuple[Checkpoint, ...]]] = {network: {} for network in self.networks}
        self.goals_s: Mapping[str, float] = {}

    def tune_both(self, network: str) -> None:
        """Tune a network with MetaSchedule, and with Onefold with and without the cold filter."""
        workspace = self.workspace
        operators = self.journal.section(f"{network}: operators", int, partial(workspace.operator_count, network))
        candidates = self.candidates_per_operator * operators
        for batch in self.batches:
            self.metaschedule[network][batch] = self.journal.section(
                f"{network}: MetaSchedule, batches of {batch}",
                tuple[Checkpoint, ...],
                partial(tune_with_metaschedule, workspace, network, candidates, batch),
            )
        self.tune(network, COLD_START, candidates)
        self.tune(network, NO_FILTER, candidates, cold_filter=False)

    def tune(
        self, network: str, condition: str, candidates: int, *, history: tuple[str, ...] = (),
        cold_filter: bool = True, threads: int = 1,
    ) -> None:  # fmt: skip
        """Tune a network with Onefold."""
        self.runs[network][condition] = self.journal.section(
            f"{network}: {condition}",
            CompileResult,
            partial(
                tune, self.workspace, condition, network, candidates,
                history=history, cold_filter=cold_filter, threads=threads,
            ),
        )  # fmt: skip

    def tune_with_history(self) -> None:
        """Tune each network after the two others, with as many candidates as its cold start."""
        for network in self.networks:
            others = tuple(run_name(COLD_START, other) for other in self.networks if other != network)
            self.tune(network, HISTORY, self.cold_start_candidates(network), history=others)

    def tune_together(self) -> None:
        """Tune all networks under one budget, until all reach the latencies of their cold starts."""
        self.goals_s = {
            network: figures.goal_s(self.time_curves(network, "for the goals of all")[COLD_START])
            for network in self.networks
        }
        candidates = sum(map(self.cold_start_candidates, self.networks))
        results = self.journal.section(
            "together",
            tuple[CompileResult, ...],
            partial(tune_together, self.workspace, candidates, list(self.goals_s.values())),
        )
        for result in results:
            self.runs[result.model][TOGETHER] = result

    def cold_start_candidates(self, network: str) -> int:
        """Return the number of candidates that the cold start of a network measured."""
        return self.runs[network][COLD_START].rounds[-1].tried

    def time_curves(self, network: str, purpose: str = "of all runs") -> Curves:
        """Return the latency after each round of every run so far, timed again."""
        runs: dict[str, tuple[Checkpoint, ...]] = {
            metaschedule_run(batch): run for batch, run in self.metaschedule[network].items()
        }
        for condition, result in self.runs[network].items():
            run = TOGETHER if condition == TOGETHER else run_name(condition, network)
            runs[condition] = tuple(checkpoints(result, self.workspace.libraries(run)))
        deployed = self.workspace.deployment(run_name(COLD_START, network)) / LIBRARY
        return self.journal.section(
            f"{network}: latencies {purpose}", dict, partial(time_checkpoints, self.workspace, network, deployed, runs)
        )

    def stock_metaschedule(self) -> list[Row]:
        """Return the time per candidate of MetaSchedule with its own builder and runner, for each batch size."""
        return [
            self.journal.section(
                f"stock MetaSchedule, batches of {batch}",
                dict,
                partial(seconds_per_candidate, self.workspace, "small", candidates, batch),
            )
            for batch, candidates in STOCK_CANDIDATES.items()
        ]

    def compare_runtimes(self, network: str) -> list[Row]:
        """Time torch, onnxruntime and TVM with one and two threads."""
        conditions = {1: COLD_START}
        if (os.cpu_count() or 1) > 1:
            history = (run_name(COLD_START, network),)
            self.tune(network, TWO_THREADS, self.cold_start_candidates(network), history=history, threads=2)
            conditions[2] = TWO_THREADS
        return [
            self.journal.section(
                f"{network}: runtimes with {threads} thread{'s' * (threads > 1)}",
                dict,
                partial(compare_runtimes, self.workspace, network, run_name(condition, network), threads),
            )
            | {"recommended": self.runs[network][condition].recommended}
            for threads, condition in conditions.items()
        ]

    def filter_precision(self) -> Row:
        """Return the precision of the cold filter on the candidates of the runs without it."""
        runs = [run_name(NO_FILTER, network) for network in self.networks]
        return self.journal.section("precision of the filter", dict, partial(filter_precision, self.workspace, runs))


if __name__ == "__main__":
    main()
