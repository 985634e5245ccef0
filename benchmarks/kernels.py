"""Kernels of three networks: how much the survey and the cold filter save, and how fast the kernels are.

The networks are a small CNN, a MobileNet-like and a ResNet-18-like one, all at 32x32 pixels with a batch size of 1. All
tuning is for one thread of this machine unless a row says otherwise: on two shared cores, two threads cannot be timed
to two percent. Energy comes from the processor's counters, or is modelled from CPU seconds if there are none.

MetaSchedule tunes with its own task scheduler, its own evolutionary search with default sizes and its own cost model,
with our warm builder and runner, in two settings: with its default batches of 64 candidates and one batch for each
operator, and with as many candidates and as small batches as Onefold, which takes it longer per candidate. The time to
a latency, of either tool, ends with the first batch or round after which the whole model was as fast: MetaSchedule's
models are compiled from its records afterwards, at no charge. The latency to reach is MetaSchedule's final one, in each
setting; the claims are about the setting that is better for MetaSchedule. Stock MetaSchedule is measured on a few
candidates of one operator and reported per candidate.

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
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from claims import Claim, arguments, conclude, median, table
from torch import nn

import onefold
from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.graph import import_onnx, optimize_graph
from onefold.kernels.model_compiler import ModelCompiler, TimedLibrary
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.source_models import load_models
from onefold.kernels.targets import Target, target_of
from onefold.kernels.toolchain import meta_schedule, tvm
from onefold.serving.export import export
from onefold.serving.served_model import ServedModel
from onefold.store import open_store
from onefold.vocabulary.kernels import CompileBudget, CompileCost, CompileOptions, CompileResult
from onefold.vocabulary.serving import ServingPoint
from onefold.workloads.mobilenet import Cifar10Mobilenet
from onefold.workloads.resnet import ResidualBlock

WARM, AS_IT_COMES, NO_WORSE = 0.6, 0.1, 1.02
LESS_COLD, PRECISE, RECALLED, TOGETHER, FASTER = 0.40, 0.8, 0.4, 0.75, 1.5
EACH, BATCH = 16, 8  # candidates per operator on average, and per batch
THEIR_BATCH = 64  # MetaSchedule's default
THEIRS, HANDED_OVER = "MetaSchedule", "handed over"
TURNS, UNTUNED = 9, 20  # timings of each library; one that is so much slower is timed once
Row = dict[str, Any]


def main() -> None:
    options = arguments(__doc__)
    logging.disable(logging.INFO)  # MetaSchedule logs every step
    quick: bool = options.quick
    each = 8 if quick else EACH
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), quick)
        theirs, ways, goals = {}, {}, {}
        for name in place.networks:
            count = each * place.operators(name)
            theirs[name] = {
                size: metaschedule(place, name, count, size)
                for size in ((THEIR_BATCH,) if quick else (THEIR_BATCH, BATCH))
            }
            ways[name] = {
                "cold start": place.compiled(name, "cold start", count),
                "no filter": place.compiled(name, "no filter", count, cold_filter=False),
            }
        if not quick:
            for name in place.networks:
                ways[name]["history"] = with_history(place, name, ways[name]["cold start"])
            goals = {name: goal_s(timed_again(place, name, theirs[name], ways[name])) for name in place.networks}
            for found in together(place, [way["cold start"] for way in ways.values()], list(goals.values())):
                ways[found.model]["together"] = found
        curves = {name: timed_again(place, name, theirs[name], ways[name]) for name in place.networks}
        rows = [compared(name, size, curves[name]) for name in place.networks for size in theirs[name]]
        table(rows)
        recalled = [] if quick else [recall(name, curves[name]) for name in place.networks]
        table(recalled)
        joint = {} if quick else at_once(curves, goals)
        alone = {} if quick else as_it_comes(place)
        killed = kill(place)
        final = [row for name in place.networks for row in raced(place, name, ways[name]["cold start"])]
        table(final)
        precision = place.precision()
    figures = {
        "metaschedule": rows, "with history": recalled, "together": joint, "as it comes": alone, "killed": killed,
        "cold": [cold_shares(name, way) for name, way in ways.items()], "filter": precision, "runtimes": final,
        "curves": curves, "energy": ways["small"]["cold start"].spent.source,
    }  # fmt: skip
    table(figures["cold"])
    claims = [
        *against(rows, alone), *filtered(figures["cold"], precision), *recalling(recalled), *joining(joint),
        Claim("kill -9 in the middle: measured twice", "0", f"{killed['twice']} of {killed['candidates']}",
              killed["twice"] == 0 and killed["candidates"] > killed["before"] > 0),
        *fast(final),
    ]  # fmt: skip
    conclude("kernels", claims, figures, quick=quick)


# The networks -------------------------------------------------------------------------------------------------------


def small() -> nn.Module:
    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU()]

    body = [*block(3, 32, 1), *block(32, 32, 1), *block(32, 64, 2), *block(64, 64, 1)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobilenet() -> nn.Module:
    workload = Cifar10Mobilenet()
    return workload.build(workload.space.default())


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for filters, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers.append(ResidualBlock(channels, filters, stride))
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


NETWORKS = {"small": small, "mobilenet": mobilenet, "resnet18": resnet18}


class Place:
    """Networks as files, and a separate home for each condition."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.networks = ["small"] if quick else list(NETWORKS)
        torch.manual_seed(0)
        self.modules = {name: NETWORKS[name]().eval() for name in self.networks}
        self.sample = torch.randn(8, 3, 32, 32)
        for name, network in self.modules.items():
            export(network, [self.sample], self.file(name))
        self.target: Target = target_of(self.device(), 1, is_host=True)

    def device(self) -> Any:
        from onefold.device.host import host

        return host(self.folder / "devices")

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.onnx"

    def home(self, name: str) -> Path:
        """Return a new home with the calibration of this machine."""
        place = self.folder / "homes" / name
        if not place.exists():
            place.mkdir(parents=True)
            (place / "devices").symlink_to(self.folder / "devices")
        return place

    def operators(self, name: str) -> int:
        with CandidateRunner(self.target) as runner:
            return len(self.compiler(name, runner).operators)

    def compiler(self, name: str, runner: CandidateRunner) -> ModelCompiler:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        source = load_models([self.file(name)], None, folder, None)[0]
        return ModelCompiler(name, source.file, source.inputs, source.outputs, runner, 3)

    def compiled(self, name: str, condition: str, candidates: int, threads: int = 1, **options: Any) -> CompileResult:
        """Compile with Onefold in a separate home until its candidates are used up."""
        print(f"{name}, {condition}: {candidates} candidates", flush=True)
        home = self.home(f"{condition}-{name}")
        with keeping(self.rounds(condition)):
            return onefold.compile(
                self.file(name), budget=CompileBudget(candidates=candidates, gain_drop=None),
                options=CompileOptions(candidates_per_round=BATCH, threads=threads, **options), home=home,
                save=self.folder / "deployed" / condition / name,
            )  # fmt: skip

    def rounds(self, condition: str) -> Path:
        """Return the folder of the libraries of all rounds, with a subfolder for each model."""
        return self.folder / "rounds" / condition

    def precision(self) -> Row:
        """Return the precision of the filter on held-out candidates of the runs without it."""
        histories: dict[Any, list[Any]] = {}
        for name in self.networks:
            store = open_store(self.home(f"no filter-{name}") / "store.db")
            operators = store.operators()
            for candidate in store.candidates():
                histories.setdefault(operators[candidate.operator], []).append(candidate)
            store.close()
        found = []
        for seed in range(5):
            cold = ColdFilter(seed)
            cold.learn(histories)
            if cold.fit is not None:
                found.append(cold.fit)
        dropped = sum(one.drop_share for one in found)
        right = sum((one.precision or 0.0) * one.drop_share for one in found)
        return {
            "candidates": sum(map(len, histories.values())), "splits": len(found),
            "precision": right / dropped if dropped else 0.0, "dropped": dropped / max(1, len(found)),
            "error": median([one.error for one in found] or [1.0]),
        }  # fmt: skip


# MetaSchedule -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The state of MetaSchedule after a batch: what was spent, and the model compiled with its records."""

    candidates: int
    spent: CompileCost
    library: Path


class Ledger:
    """Notes after each batch what was spent and which latencies were measured.

    MetaSchedule commits the records of a batch late, when it comes back to the operator.
    """

    def __init__(self) -> None:
        self.costs, self.phase = PhaseCosts(), ExitStack()
        self.latencies: set[float] = set()
        self.batches: list[tuple[frozenset[float], CompileCost]] = []
        self.phase.enter_context(self.costs.phase("search"))

    def end_batch(self, latencies: Sequence[float]) -> None:
        self.phase.close()
        self.latencies |= set(latencies)
        self.batches.append((frozenset(self.latencies), self.costs.total))
        self.phase.enter_context(self.costs.phase("search"))


def metaschedule(place: Place, name: str, candidates: int, batch: int) -> list[Point]:
    """Tune with MetaSchedule's scheduler, search and cost model, and our warm builder and runner."""
    print(f"{name}, MetaSchedule: batches of {batch}", flush=True)
    tuner = meta_schedule()
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    with CandidateRunner(place.target) as runner:
        operator, module = place.compiler(name, runner).operators[-1]
        runner.measure_reference(operator.key, module, runner.build([module, module])[0])  # starts the processes
        database = tuner.database.MemoryDatabase()
        ledger = Ledger()
        graph = optimize_graph(import_onnx(place.file(name)), place.target)
        warm_builder, warm_runner = adapters(runner, ledger, folder)
        tasks = tuner.relax_integration.extract_tasks(graph, place.target.tvm_target(), {})
        contexts, weights = tuner.relax_integration.extracted_tasks_to_tune_contexts(tasks, str(folder), seed=1)
        tuner.tune_tasks(
            tasks=contexts, task_weights=weights, work_dir=str(folder),
            max_trials_global=max(candidates, batch * len(tasks)) if batch == THEIR_BATCH else candidates,
            num_trials_per_iter=batch, builder=warm_builder, runner=warm_runner, database=database,
        )  # fmt: skip
        ledger.phase.close()
    return [
        Point(
            len(known), spent, with_records(place, graph, database, known, place.folder / f"{name}-{batch}-{at:03}.so")
        )
        for at, (known, spent) in enumerate(ledger.batches)
    ]


def with_records(place: Place, graph: Any, database: Any, known: frozenset[float], file: Path) -> Path:
    """Compile a model with the records of these latencies."""
    from tvm import relax

    target, first = place.target.tvm_target(), meta_schedule().database.MemoryDatabase()
    for record in database.get_all_tuning_records():
        if float(record.run_secs[0]) in known:
            first.commit_workload(record.workload.mod)
            first.commit_tuning_record(record)
    with target, first, tvm().transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(graph)
        tvm().compile(applied, target=target).export_library(str(file))
    return file


def adapters(runner: CandidateRunner, ledger: Ledger, folder: Path) -> tuple[Any, Any]:
    """Return our builder and runner as those of MetaSchedule."""
    from tvm.ir.utils import derived_object

    tuner = meta_schedule()

    @derived_object
    class Builder(tuner.builder.PyBuilder):  # type: ignore[name-defined,misc]
        def build(self, inputs: Any) -> list[Any]:
            found = []
            for one in runner.build([one.mod for one in inputs]):
                ledger.costs.add("build", one.reply.joules)
                file = Path(tempfile.mkdtemp(dir=folder)) / one.file.name  # the folder is removed later
                if not one.reply.error:
                    one.file.rename(file)
                error = one.reply.error or None
                found.append(tuner.builder.BuilderResult(None if error else str(file), error))
            return found

    @derived_object
    class Future(tuner.runner.PyRunnerFuture):  # type: ignore[name-defined,misc]
        def __init__(self, latencies: Any, error: Any) -> None:
            super().__init__()
            self.latencies, self.error = latencies, error

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return tuner.runner.RunnerResult(self.latencies, self.error)

    @derived_object
    class Runner(tuner.runner.PyRunner):  # type: ignore[name-defined,misc]
        def run(self, inputs: Any) -> list[Any]:
            found, measured = [], []
            for one in inputs:
                kinds = tuple((str(info.dtype), tuple(int(size) for size in info.shape)) for info in one.args_info)
                reply = runner.time_library(Path(str(one.artifact_path)), kinds)
                ledger.costs.add("run", reply.joules)
                measured += [] if reply.error else [median(reply.value["latencies"])]  # not the mean
                found.append(Future(None if reply.error else measured[-1:], reply.error or None))
            ledger.end_batch(measured)
            return found

    return Builder(), Runner()


def as_it_comes(place: Place) -> Row:
    """Return the seconds per candidate with MetaSchedule's builder and runner, which restart for each batch."""
    program = (
        "import sys, time, logging, tempfile; logging.disable(logging.INFO)\n"
        "import tvm, onnx\n"
        "from tvm import relax\n"
        "from tvm.relax.frontend.onnx import from_onnx\n"
        "from tvm.s_tir import meta_schedule as ms\n"
        "mod = from_onnx(onnx.load(sys.argv[1]), shape_dict={'input0': [1, 3, 32, 32]})\n"
        "cpu = tvm.get_global_func('target.llvm_get_system_cpu')()\n"
        "target = tvm.target.Target({'kind': 'llvm', 'mcpu': cpu, 'num-cores': 1})\n"
        "R = relax.transform\n"
        "with target: mod = tvm.transform.Sequential([R.DecomposeOpsForInference(), R.LegalizeOps(),"
        " R.AnnotateTIROpPattern(), R.FoldConstant(), R.FuseOps(), R.FuseTIR()])(mod)\n"
        "task = [t for t in ms.relax_integration.extract_tasks(mod, target, {}) if 'conv' in t.task_name][:1]\n"
        "contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(task, tempfile.mkdtemp())\n"
        "began = time.time()\n"
        "db = ms.tune_tasks(tasks=contexts, task_weights=weights, work_dir=tempfile.mkdtemp(), max_trials_global=16,"
        " num_trials_per_iter=8, database='memory')\n"
        "print((time.time() - began) / 16)\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", program, str(place.file("small"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"seconds_per_candidate": None, "said": done.stderr[-500:]}
    return {"seconds_per_candidate": float(done.stdout.split()[-1]), "candidates": 16}


def against(rows: Sequence[Row], alone: Row) -> list[Claim]:
    worst = [max(pair, key=ratio_s) for pair in by_network(rows)]  # the better setting of MetaSchedule
    seconds = [ratio_s(row) for row in worst]
    joules = [
        max((row["J until theirs"] or float("inf")) / row["their J"] for row in pair) for pair in by_network(rows)
    ]
    last = [row["our ms"] / row["their ms"] for row in rows if row["batch"] == BATCH]  # with equal candidates
    per_candidate = alone.get("seconds_per_candidate")
    stock = [
        (row["s until theirs"] or float("inf")) / (per_candidate * row["candidates"])
        for row in rows
        if per_candidate and row["batch"] == BATCH
    ]
    as_it_comes = Claim(
        "… time, against MetaSchedule as it comes (estimated from its seconds a candidate)", f"<= {AS_IT_COMES:g}x",
        f"{_list(stock)}; it takes {per_candidate or 0:.1f} s a candidate", bool(stock) and max(stock) <= AS_IT_COMES,
    )  # fmt: skip
    return [
        Claim("time to MetaSchedule's final latency, with our builder and runner", f"<= {WARM:g}x",
              f"{_list(seconds)} (worst {max(seconds):.2f}x)", max(seconds) <= WARM),
        Claim("… energy", f"<= {WARM:g}x", f"{_list(joules)} (worst {max(joules):.2f}x)", max(joules) <= WARM),
        *([Claim("latency at equal candidates", f"<= {NO_WORSE:g}x", f"{_list(last)} (worst {max(last):.2f}x)",
                 max(last) <= NO_WORSE)] if last else []),
        *([as_it_comes] if alone else []),
    ]  # fmt: skip


def ratio_s(row: Row) -> float:
    return float((row["s until theirs"] or float("inf")) / row["their s"])


def by_network(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row["network"] == name] for name in dict.fromkeys(row["network"] for row in rows)]


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}x" for value in values)


# Latencies over time ------------------------------------------------------------------------------------------------


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Copy the library of every round of a survey, also those that it deletes."""
    time_library, measure, rounds = ModelCompiler.time_library, ModelCompiler.measure, Counter[str]()

    def timed(self: ModelCompiler, file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        shutil.copyfile(file, folder / file.name)
        return time_library(self, file, costs)

    def measured(self: ModelCompiler, *arguments: Any) -> TimedLibrary:
        found = measure(self, *arguments)
        to = folder / self.name / f"{rounds[self.name]:03}.so"
        to.parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / found.file.name, to)
        rounds[self.name] += 1
        return found

    folder.mkdir(parents=True, exist_ok=True)
    with mock.patch.multiple(ModelCompiler, time_library=timed, measure=measured):
        yield


def timed_again(
    place: Place, name: str, theirs: dict[int, list[Point]], ways: dict[str, CompileResult]
) -> dict[str, list[Row]]:
    """Return each batch or round of every condition with its latency, timed again in turns with all others."""
    print(f"{name}: timing all rounds again", flush=True)
    files = {(HANDED_OVER, 0): Path(ways["cold start"].folder) / "kernels.so"}
    for size, points in theirs.items():
        files |= {(f"{THEIRS} {size}", at): point.library for at, point in enumerate(points)}
    for way, compiled in ways.items():
        kept = sorted((place.rounds(way) / name).iterdir())
        files |= {(way, at): file for at, (file, _) in enumerate(zip(kept, compiled.rounds, strict=True))}
    times: dict[tuple[str, int], list[float]] = {label: [] for label in files}
    with CandidateRunner(place.target) as runner:
        compiler = place.compiler(name, runner)
        for turn in range(TURNS):
            fastest = min((one[0] for one in times.values() if one), default=float("inf"))
            for label in random.Random(turn).sample(list(files), len(files)):
                if not times[label] or times[label][0] < UNTUNED * fastest:
                    times[label].append(compiler.time_library(files[label]).latency_s)
    curves: dict[str, list[Row]] = {HANDED_OVER: [{"latency_s": min(times[HANDED_OVER, 0])}]}
    for size, points in theirs.items():
        way = f"{THEIRS} {size}"
        curves[way] = [
            {"ended_s": point.spent.time_s, "joules": point.spent.energy.joules, "tried": point.candidates,
             "latency_s": min(times[way, at])}
            for at, point in enumerate(points)
        ]  # fmt: skip
    for way, compiled in ways.items():
        curves[way] = [
            {"ended_s": tuning_round.ended_s, "joules": tuning_round.spent.energy.joules, "tried": tuning_round.tried,
             "latency_s": min(times[way, at]), "then_s": tuning_round.latency_s}
            for at, tuning_round in enumerate(compiled.rounds)
        ]  # fmt: skip
    return curves


def reached(curve: Sequence[Row], latency_s: float) -> Row | None:
    """Return the first round after which the model was as fast; None if there is none."""
    return next((one for one in curve if one["latency_s"] <= latency_s), None)


def best_s(curve: Sequence[Row]) -> float:
    return float(min(one["latency_s"] for one in curve))


def compared(name: str, size: int, curves: dict[str, list[Row]]) -> Row:
    """Charge both tools up to the first point at which they were as fast as MetaSchedule is in the end."""
    ours, theirs = curves["cold start"], curves[f"{THEIRS} {size}"]
    goal = NO_WORSE * best_s(theirs)
    first, match = reached(ours, goal), reached(theirs, goal)
    if match is None:
        raise AssertionError("MetaSchedule reaches its own latency")
    return {
        "network": name, "batch": size, "candidates": theirs[-1]["tried"], "their ms": best_s(theirs) * 1e3,
        "their s": match["ended_s"], "their J": match["joules"], "their s in all": theirs[-1]["ended_s"],
        "our candidates": ours[-1]["tried"], "our ms": best_s(curves[HANDED_OVER]) * 1e3,
        "our s": ours[-1]["ended_s"], "our J": ours[-1]["joules"], "s until theirs": first and first["ended_s"],
        "J until theirs": first and first["joules"],
    }  # fmt: skip


# The filter, history, several models --------------------------------------------------------------------------------


def cold_shares(name: str, ways: dict[str, CompileResult]) -> Row:
    """Return the cost of cold candidates with and without the filter, by the LOESS fit of the search without it.

    By its own fit, about half of the candidates of any search are cold.
    """
    found: Row = {"network": name}
    lines = {
        history.operator.key: [usual for usual in history.line if usual is not None]
        for history in ways["no filter"].histories
    }
    for label, compiled in (("filtered", ways["cold start"]), ("plain", ways["no filter"])):
        measured = [
            (candidate, is_above(candidate, lines[history.operator.key], at))
            for history in compiled.histories
            for at, candidate in enumerate(history.candidates)
        ]
        found[f"{label} cold s"] = sum(
            candidate.build_s + candidate.run_s for candidate, is_cold in measured if is_cold
        )
        found[f"{label} cold J"] = sum(candidate.joules or 0.0 for candidate, is_cold in measured if is_cold)
        found[f"{label} s"] = sum(candidate.build_s + candidate.run_s for candidate, _ in measured)
        found[f"{label} dropped"] = sum(operator.filtered for operator in compiled.rounds[-1].operators)
    return found


def is_above(candidate: Any, line: Sequence[float], at: int) -> bool:
    return bool(line) and candidate.latency_s is not None and candidate.latency_s > line[min(at, len(line) - 1)]


def filtered(rows: Sequence[Row], precision: Row) -> list[Claim]:
    seconds = 1 - sum(row["filtered cold s"] for row in rows) / sum(row["plain cold s"] for row in rows)
    joules = 1 - sum(row["filtered cold J"] for row in rows) / max(1e-9, sum(row["plain cold J"] for row in rows))
    dropped = sum(row["filtered dropped"] for row in rows)  # without any, a difference is noise
    return [
        Claim("time spent on cold candidates, with the filter", f"{LESS_COLD:.0%} less",
              f"{seconds:.0%} less, {dropped} dropped", dropped > 0 and seconds >= LESS_COLD),
        Claim("energy spent on cold candidates, with the filter", f"{LESS_COLD:.0%} less",
              f"{joules:.0%} less, {dropped} dropped", dropped > 0 and joules >= LESS_COLD),
        Claim("precision of the filter on held-out candidates", f">= {PRECISE:g}",
              f"{precision['precision']:.2f} ({precision['dropped']:.0%} of {precision['candidates']} dropped)",
              precision["precision"] >= PRECISE),
    ]  # fmt: skip


def with_history(place: Place, name: str, cold: CompileResult) -> CompileResult:
    """Compile with the history of the two other networks."""
    store = open_store(place.home(f"history-{name}") / "store.db")
    for other in place.networks:
        if other != name:
            earlier = open_store(place.home(f"cold start-{other}") / "store.db")
            for operator in earlier.operators().values():
                store.save_operator(operator)
            store.save_candidates(earlier.candidates())
            earlier.close()
    store.close()
    return place.compiled(name, "history", cold.rounds[-1].tried)


def goal_s(curves: dict[str, list[Row]]) -> float:
    """Return the latency that a cold start reached."""
    return NO_WORSE * best_s(curves["cold start"])


def recall(name: str, curves: dict[str, list[Row]]) -> Row:
    """Return the time to the latency that the cold start reached."""
    goal = goal_s(curves)
    before, now = reached(curves["cold start"], goal), reached(curves["history"], goal)
    return {
        "network": name, "goal ms": goal * 1e3, "cold start s": before and before["ended_s"],
        "with history s": now and now["ended_s"], "ms": best_s(curves["history"]) * 1e3,
    }  # fmt: skip


def recalling(rows: Sequence[Row]) -> list[Claim]:
    if not rows:
        return []
    ratios = [(row["with history s"] or float("inf")) / row["cold start s"] for row in rows]
    return [
        Claim("time to the same latency with history of the two others", f"<= {RECALLED:g}x",
              f"{_list(ratios)} (worst {max(ratios):.2f}x)", max(ratios) <= RECALLED)
    ]  # fmt: skip


def together(place: Place, alone: Sequence[CompileResult], goals: Sequence[float]) -> list[CompileResult]:
    """Tune all models in one survey, with as many candidates as separately, until all reach their goals."""
    count = sum(found.rounds[-1].tried for found in alone)
    print(f"together: {count} candidates", flush=True)
    files = [place.file(name) for name in place.networks]
    with keeping(place.rounds("together")):
        return onefold.compile_many(
            files, goals=goals, budget=CompileBudget(candidates=count, gain_drop=None),
            options=CompileOptions(candidates_per_round=BATCH, threads=1), home=place.home("together"),
        )  # fmt: skip


def at_once(curves: dict[str, dict[str, list[Row]]], goals: dict[str, float]) -> Row:
    """Return the energy until all models reached their goals, in one survey and separately."""
    apart = {name: reached(curve["cold start"], goals[name]) for name, curve in curves.items()}
    joint = {name: reached(curve["together"], goals[name]) for name, curve in curves.items()}
    return {
        "goals ms": {name: goal * 1e3 for name, goal in goals.items()},
        "ms": {name: best_s(curve["together"]) * 1e3 for name, curve in curves.items()},
        "apart J": sum(one["joules"] for one in apart.values() if one),
        "together J": {name: one and one["joules"] for name, one in joint.items()},
    }  # fmt: skip


def joining(joint: Row) -> list[Claim]:
    if not joint:
        return []
    spent = joint["together J"]
    missed = [name for name, joules in spent.items() if joules is None]
    ratio = float("inf") if missed else max(spent.values()) / joint["apart J"]
    said = f"{ratio:.2f}x" if not missed else f"not reached: {', '.join(missed)}"
    return [
        Claim(f"{len(spent)} models under one budget, energy to the same latencies", f"<= {TOGETHER:g}x", said,
              ratio <= TOGETHER)
    ]  # fmt: skip


def kill(place: Place) -> Row:
    """Run a real command, kill it after some candidates, and run it again."""
    home = place.home("killed")
    words = [
        sys.executable, "-W", "ignore", "-c", "from onefold.cli import main; main()", "compile",
        str(place.file("small")), "--candidates", "48", "--no-early-stop", "--home", str(home), "--json",
    ]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and len(_rows(home)) < 16:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = _rows(home)
    subprocess.run(words, capture_output=True, text=True, check=True)
    after = _rows(home)
    twice = [key for key, content in before.items() if after.get(key) != content]
    return {"before": len(before), "candidates": len(after), "twice": len(twice)}


def _rows(home: Path) -> dict[str, str]:
    """Return the stored content of each candidate, with its build and run times."""
    file = home / "store.db"
    if not file.exists():
        return {}
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            return dict(connection.execute("select key, content from candidates").fetchall())
    except sqlite3.OperationalError:  # before the tables are created
        return {}


# How fast the kernels are -------------------------------------------------------------------------------------------


def raced(place: Place, name: str, cold: CompileResult) -> list[Row]:
    """Time torch, onnxruntime and TVM, untuned and tuned, with one and two threads, in turns."""
    rows = []
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        compiled = cold
        if threads > 1:
            compiled = place.compiled(name, "cold start", cold.rounds[-1].tried, threads=threads)
        library = Path(compiled.folder) / "kernels.so"
        times: dict[str, list[float]] = {"torch": [], "onnxruntime": [], "sleeping": [], "tuned": [], "untuned": []}
        target = target_of(place.device(), threads, is_host=True)
        with CandidateRunner(target) as runner:
            compiler = place.compiler(name, runner)
            untuned = compiler.compile({}, place.folder / f"{name}-{threads}-untuned.so")
            for _ in range(5):
                times["torch"].append(_torch(place.modules[name], place.sample[:1], threads))
                for label, waiting in (("onnxruntime", "spinning"), ("sleeping", "sleeping")):
                    opener = partial(ServedModel, place.file(name), ServingPoint(1, threads, waiting=waiting))
                    served = runner.time_served(opener, compiler.inputs, is_compiled=False)
                    times[label].append(median(served.latencies))
                times["tuned"].append(compiler.time_library(library).latency_s)
                times["untuned"].append(compiler.time_library(untuned).latency_s)
        least = {label: min(values) * 1e3 for label, values in times.items()}
        rows.append({"network": name, "threads": threads, **least, "recommended": compiled.recommended})
    return rows


def _torch(network: nn.Module, sample: torch.Tensor, threads: int) -> float:
    torch.set_num_threads(threads)
    with torch.inference_mode():
        return _timed(lambda: network(sample))


def _timed(run: Any) -> float:
    times = []
    for _ in range(120):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times[20:])


def fast(rows: Sequence[Row]) -> list[Claim]:
    over_torch = [row["torch"] / row["tuned"] for row in rows]
    over_ort = [row["tuned"] / row["onnxruntime"] for row in rows]
    wrong = [
        row for row in rows
        if (row["recommended"] == "tvm") != (row["tuned"] <= row["onnxruntime"])
        and abs(row["tuned"] / row["onnxruntime"] - 1) > 0.05
    ]  # fmt: skip
    return [
        Claim("tuned kernels against torch inference", f">= {FASTER:g}x faster on all",
              f"{_list(over_torch)} (worst {min(over_torch):.2f}x)", min(over_torch) >= FASTER),
        Claim("tuned kernels against onnxruntime", "at or below its latency on one", _list(over_ort),
              min(over_ort) <= 1.0),
        Claim("the recommended runtime is the fastest", "always (5 % apart or more)",
              f"{len(rows) - len(wrong)} of {len(rows)}", not wrong),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
