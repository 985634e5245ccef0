"""In-loop compression against compression after the study, in equal time.

Two steps: tune for accuracy, then build variants of the best ten trials. One loop: tune for accuracy, latency and
encoded size and fork the best trials meanwhile, in the same time, with as many workers, the same search space, epochs
and recipes. The final models of both are scored by the runtime on the validation data and timed interleaved.

The hypervolume spans accuracy from 5 points below the best plain model of the two steps, and latency and encoded size
below the largest of any model: one reference point for both.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims import Claim, arguments, conclude, table

from onefold import (
    Budget,
    Choice,
    Data,
    ForkOptions,
    Int,
    Objective,
    ParallelismOptions,
    SearchOptions,
    ServingOptions,
    Space,
    Study,
)
from onefold.compression.after_study import EPOCHS, MAX_TRIALS
from onefold.compression.encoding import pack_smallest
from onefold.compression.measurement import measure_single_sample
from onefold.compression.onnx_module import OnnxModule
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import open_session
from onefold.device.host import host
from onefold.engine import open_engine
from onefold.serving.export import samples_beside
from onefold.store.home import Home
from onefold.study.tunable import Tunable
from onefold.study.worker_calls import export_trained
from onefold.training.calls import export_network
from onefold.training.trial_files import best_weights_file, fork_file
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.ranking import front, ranked
from onefold.vocabulary.requirement import requirement
from onefold.vocabulary.variants import RECIPES
from onefold.vocabulary.workload_reference import load
from onefold.workloads.lenet import FashionLenet
from onefold.workloads.text_cnn import NewsgroupsCnn
from onefold.workloads.text_transformer import AgNewsTransformer

Row = dict[str, Any]
WORKLOADS = {
    "LeNet, a quarter of Fashion-MNIST": "PartOfFashion",
    "text CNN, half of 20 Newsgroups": "HalfOfNewsgroups",
    "transformer, a fifth of AG News": "PartOfAgNews",
}
METHOD_VERSION = 2  # trials are forked late, and a transformer takes part
SEEDS = (0, 1, 2)
FASHION_SHARE, AG_NEWS_SHARE = 0.25, 0.2  # of the training data: all of it would take hours
TRIALS, MAX_EPOCHS = 8, 4
MAX_WORKERS = 5  # of one study
MAX_ACCURACY_LOSS = 0.05  # of the best plain model
METRIC, COSTS = "accuracy", ("latency_s", "encoded_bytes")
TWO_STEPS, ONE_LOOP = METHODS = ("two steps", "one loop")
RESERVED_S = 15.0  # for the handover, which counts as part of the loop's time


class PartOfFashion(FashionLenet):
    """LeNet."""

    def data(self) -> Data:
        return part_of(super().data(), FASHION_SHARE)


class HalfOfNewsgroups(NewsgroupsCnn):
    """A text CNN."""

    def data(self) -> Data:
        return part_of(super().data(), 0.5)


class PartOfAgNews(AgNewsTransformer):
    """A transformer of one or two layers, since deeper ones would take most of the time."""

    space = Space(
        model=dict(
            AgNewsTransformer.space.groups["model"], width=Choice(32, 64, default=64), depth=Int(1, 2, default=2)
        ),
        training=dict(AgNewsTransformer.space.groups["training"]),
    )

    def data(self) -> Data:
        return part_of(super().data(), AG_NEWS_SHARE)


def part_of(data: Data, share: float) -> Data:
    """Return data with a share of the training samples."""
    return replace(data, train=tuple(part[: int(share * len(part))] for part in data.train))


@dataclass(frozen=True)
class PairedRun:
    """A workload and a seed with which both methods are run, on cores of their own."""

    workload: str  # the title
    seed: int
    folder: Path
    cores: list[int]
    trials: int
    epochs: int

    @property
    def reference(self) -> str:
        """Return the reference of the workload."""
        return f"{Path(__file__).resolve()}:{WORKLOADS[self.workload]}"


def compare(comparison: PairedRun) -> Row:
    """Run both methods; return their final models, still to be timed."""
    os.sched_setaffinity(0, comparison.cores)  # disjoint from those of comparisons that run in parallel
    started = time.monotonic()
    two_step_models = run_two_steps(comparison)
    seconds = time.monotonic() - started
    print(f"{comparison.workload}, seed {comparison.seed}: two steps took {seconds:.0f} s", flush=True)
    started = time.monotonic()
    loop_models, trials, forks = run_one_loop(comparison, seconds)
    return {
        "workload": comparison.workload, "seed": comparison.seed, TWO_STEPS: two_step_models, ONE_LOOP: loop_models,
        "loop trials": trials, "loop forks": forks, "seconds": seconds, "loop seconds": time.monotonic() - started,
    }  # fmt: skip


def run_two_steps(comparison: PairedRun) -> list[Row]:
    """Tune for accuracy, then build variants of the best trials; return all final models."""
    workload, seed, workers = comparison.reference, comparison.seed, len(comparison.cores)
    folder, trials, epochs = comparison.folder / "two-steps", comparison.trials, comparison.epochs
    home = Home(folder)
    study = Study(
        workload,
        budget=Budget(trials=trials, max_epochs=epochs),
        seed=seed,
        home=home,
        on_event=lambda _: None,
        search=SearchOptions(rungs="asha"),
        parallelism=ParallelismOptions(parallel=workers, threads=1),
    )
    study.run()
    max_metric_loss = study.spec.selection.max_metric_loss
    requests = [
        VariantRequest(trial.number, trial.config, str(weights), RECIPES, EPOCHS, max_metric_loss, skip_failures=True)
        for trial in ranked(study.trials, study.spec.objective)[:MAX_TRIALS]
        if (weights := best_weights_file(study.folder, trial.number, trial.finished_rungs[-1].rung)) is not None
    ]
    here = host(home.devices)
    with (
        open_engine("processes", Tunable(workload).setup(study.folder, "cpu"), slots=workers) as engine,
        TrialVariants(
            engine, here, here, home.locks.measurement, study.folder / "variants", keep_files=True
        ) as builder,
    ):
        variants = builder.build(requests)
        return [
            {
                "model": f"trial {request.trial}, {variant.recipe}",
                "plain": variant.recipe.is_plain,
                "file": kept(builder.file(request, variant.recipe), comparison.folder / f"trial-{request.trial}"),
                METRIC: variant.metrics[METRIC],
            }
            for request in requests
            for variant in variants.get(request.trial, ())
        ]


def kept(model: Path, folder: Path) -> str:
    """Copy a model and its samples into a folder, since the builder removes them at its end; return the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(samples_beside(model), samples_beside(folder / model.name))
    return str(shutil.copyfile(model, folder / model.name))


def run_one_loop(comparison: PairedRun, seconds: float) -> tuple[list[Row], int, int]:
    """Tune with forks; return the models on the Pareto front, and the numbers of trials and of forks."""
    workload, seed, workers = comparison.reference, comparison.seed, len(comparison.cores)
    folder, epochs = comparison.folder / "one-loop", comparison.epochs
    home = Home(folder)
    bounds = dict([requirement(f"{METRIC}>=best-{MAX_ACCURACY_LOSS}")])
    minutes = max(seconds - RESERVED_S, seconds / 2) / 60
    study = Study(
        workload,
        objective=Objective(maximize=METRIC, minimize=COSTS, require=bounds),
        budget=Budget(trials=1000, max_epochs=epochs, minutes=minutes),
        seed=seed,
        home=home,
        device="host",
        compress=ForkOptions(RECIPES, EPOCHS),
        on_event=lambda _: None,
        search=SearchOptions(rungs="asha"),
        serving=ServingOptions(optimize_for="latency"),
        parallelism=ParallelismOptions(parallel=workers, threads=1),
    )
    study.run()
    trainer = WorkloadTrainer(load(workload), study.folder, exporter=export_network)
    models = []
    for trial in front(study.trials, study.spec.objective):
        fork, rung = fork_of(trial.config), trial.finished_rungs[-1].rung
        file, accuracy = fork_file(study.folder, trial.number, rung), trial.metrics[METRIC]
        if fork is None:
            weights = best_weights_file(study.folder, trial.number, rung)
            list(export_trained(trainer, trial.config, str(weights), str(file), tick=lambda: None))
            trained = trainer.open_model(trial.config)
            accuracy = trained.score(OnnxModule(file, trained.outputs))[METRIC]
        model = f"trial {trial.number}, {fork.recipe if fork is not None else 'plain'}"
        models.append({"model": model, "plain": fork is None, "file": str(file), METRIC: accuracy})
    dense = sum(fork_of(trial.config) is None for trial in study.trials)
    return models, dense, len(study.trials) - dense


def measure_models(results: list[Row], folder: Path) -> None:
    """Time all models interleaved, with nothing else running, and pack them."""
    here = host(folder / "devices")
    models = [model for result in results for method in METHODS for model in result[method]]
    with open_session(here, here) as session:
        served = measure_single_sample(session, [Path(model["file"]) for model in models], 2)
    for model in models:
        content = Path(model["file"]).read_bytes()
        model["latency_s"] = served[Path(model["file"])].fastest.latency_s
        model["encoded_bytes"] = len(pack_smallest(content))
        del model["file"]


def hypervolume(models: list[Row], best: float, largest: dict[str, float]) -> float:
    """Return the volume that the models dominate, each axis scaled from 0 (the reference point) to 1 (the ideal)."""
    points = [
        (
            (model[METRIC] - best + MAX_ACCURACY_LOSS) / (1 - best + MAX_ACCURACY_LOSS),
            *(1 - model[cost] / largest[cost] for cost in COSTS),
        )
        for model in models
    ]
    points = [point for point in points if min(point) > 0]
    volume, edges = 0.0, sorted({point[0] for point in points})
    for previous, edge in zip([0.0, *edges], edges):  # slices along the first axis, each a union of rectangles
        area, top = 0.0, 0.0
        for _, x, y in sorted((point for point in points if point[0] >= edge), key=lambda point: -point[1]):
            area += x * max(0.0, y - top)
            top = max(top, y)
        volume += (edge - previous) * area
    return volume


def comparison_row(result: Row) -> Row:
    """Return the hypervolumes of both methods on one workload with one seed."""
    best = max(model[METRIC] for model in result[TWO_STEPS] if model["plain"])
    largest = {cost: max(model[cost] for method in METHODS for model in result[method]) for cost in COSTS}
    volumes = {method: hypervolume(result[method], best, largest) for method in METHODS}
    return {
        "workload": result["workload"], "seed": result["seed"], "seconds": result["seconds"],
        "loop seconds": result["loop seconds"], "trials in the loop": result["loop trials"],
        "forks": result["loop forks"], "best plain": best, **volumes,
        "ratio": volumes[ONE_LOOP] / max(volumes[TWO_STEPS], 1e-9),
    }  # fmt: skip


def main() -> None:
    quick = arguments(__doc__).quick
    workloads, seeds = (list(WORKLOADS)[:1], SEEDS[:1]) if quick else (list(WORKLOADS), SEEDS)
    trials, epochs = (4, 2) if quick else (TRIALS, MAX_EPOCHS)
    cores = sorted(os.sched_getaffinity(0))
    workers = min(MAX_WORKERS, len(cores))
    shares = [cores[at : at + workers] for at in range(0, len(cores) - workers + 1, workers)]
    results: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(workload, seed) for workload in workloads for seed in seeds]
        for at in range(0, len(jobs), len(shares)):
            comparisons = [
                PairedRun(workload, seed, Path(folder) / f"{WORKLOADS[workload]}-{seed}", share, trials, epochs)
                for (workload, seed), share in zip(jobs[at:], shares)
            ]
            with ProcessPoolExecutor(len(comparisons), multiprocessing.get_context("spawn")) as pool:
                results += pool.map(compare, comparisons)
        measure_models(results, Path(folder))
    rows = [comparison_row(result) for result in results]
    table(rows)
    claims = []
    for workload in workloads:
        ratios = [row["ratio"] for row in rows if row["workload"] == workload]
        measured = f"{median(ratios):.2f}x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        claims.append(
            Claim(f"{workload}: hypervolume of one loop against two steps", ">= 1.1x", measured, median(ratios) >= 1.1)
        )
    conclude("in_loop", claims, {"rows": rows, "models": results}, quick=quick)


if __name__ == "__main__":
    main()
