"""In-loop compression against compression after the study: which finds the better small models in equal time?

Two steps: tune for accuracy, then build four variants of each of the best ten trials. One loop: the recipe is part of
the search over accuracy, latency and encoded size, with the same time and as many workers; a trial may train as many
epochs as a variant of the two steps in total. The final models of both are exported, scored by the runtime on the
validation data and timed interleaved.

The hypervolume spans accuracy from 5 points below the best plain model, and latency and encoded size below the largest
of any model.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims import Claim, arguments, conclude, median, table

from onefold import Budget, Data, Objective, ParallelismOptions, SearchOptions, ServingOptions, Study
from onefold.compression.after_study import EPOCHS, MAX_METRIC_LOSS, MAX_TRIALS, RECIPES
from onefold.compression.encoding import ENCODINGS, pack
from onefold.compression.measurement import measure_single_sample
from onefold.compression.onnx_module import OnnxModule
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import open_session
from onefold.device.host import host
from onefold.engine import open_engine
from onefold.store.home import Home
from onefold.study.tunable import Tunable
from onefold.study.worker_calls import export_trained
from onefold.training.calls import export_network
from onefold.training.trial_files import best_weights_file
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.ranking import front, ranked
from onefold.vocabulary.requirement import requirement
from onefold.vocabulary.workload_reference import load
from onefold.workloads.lenet import FashionLenet
from onefold.workloads.text_cnn import NewsgroupsCnn

WORKLOADS = {"a quarter of Fashion-MNIST": "QuarterOfFashion", "half of 20 Newsgroups": "HalfOfNewsgroups"}
SEEDS = (0, 1, 2)
TRIALS, MAX_EPOCHS = 12, 4
WITHIN = 0.05  # of the best plain model's accuracy
METRIC, COSTS = "accuracy", ("latency_s", "encoded_bytes")
RESERVED_S = 15.0  # for the handover, which counts as part of the loop's time


class QuarterOfFashion(FashionLenet):
    """LeNet on a quarter of the data: all of it would take an hour and a half."""

    def data(self) -> Data:
        return part_of(super().data(), 0.25)


class HalfOfNewsgroups(NewsgroupsCnn):
    """A text CNN."""

    def data(self) -> Data:
        return part_of(super().data(), 0.5)


def part_of(data: Data, share: float) -> Data:
    return replace(data, train=tuple(part[: int(share * len(part))] for part in data.train))


def compare(job: tuple[str, int, str, list[int], int, int]) -> dict[str, Any]:
    """Run both on one workload with one seed; return their final models, still to be timed."""
    title, seed, folder, cores, trials, epochs = job
    workload = f"{Path(__file__).resolve()}:{WORKLOADS[title]}"
    os.sched_setaffinity(0, cores)  # disjoint from those of jobs that run in parallel
    workers = len(cores)
    place = Path(folder) / f"{WORKLOADS[title]}-{seed}"
    began = time.monotonic()
    two = two_steps(workload, seed, place / "two", workers, trials, epochs)
    seconds = time.monotonic() - began
    print(f"{title}, seed {seed}: two steps took {seconds:.0f} s", flush=True)
    began = time.monotonic()
    one, begun = one_loop(workload, seed, place / "one", workers, seconds, epochs + EPOCHS)
    return {
        "workload": title, "seed": seed, "two steps": two, "one loop": one, "begun": begun,
        "seconds": seconds, "loop seconds": time.monotonic() - began,
    }  # fmt: skip


def two_steps(workload: str, seed: int, folder: Path, workers: int, trials: int, epochs: int) -> list[dict[str, Any]]:
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
    requests = [
        VariantRequest(trial.number, trial.config, str(weights), RECIPES, EPOCHS, MAX_METRIC_LOSS, skip_failures=True)
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
                "what": f"trial {request.trial}, {variant.recipe}",
                "plain": variant.recipe.is_plain,
                "file": str(builder.file(request, variant.recipe)),
                METRIC: variant.metrics[METRIC],
            }
            for request in requests
            for variant in variants.get(request.trial, ())
        ]


def one_loop(
    workload: str, seed: int, place: Path, workers: int, seconds: float, epochs: int
) -> tuple[list[dict[str, Any]], int]:
    home = Home(place)
    bounds = dict([requirement(f"{METRIC}>=best-{WITHIN}")])
    minutes = max(seconds - RESERVED_S, seconds / 2) / 60
    study = Study(
        workload,
        objective=Objective(maximize=METRIC, minimize=COSTS, require=bounds),
        budget=Budget(trials=1000, max_epochs=epochs, minutes=minutes),
        seed=seed,
        home=home,
        device="host",
        compress="in-loop",
        on_event=lambda _: None,
        search=SearchOptions(rungs="asha"),
        serving=ServingOptions(optimize_for="latency"),
        parallelism=ParallelismOptions(parallel=workers, threads=1),
    )
    study.run()
    compressed = load(f"compressed+{workload}")
    trainer = WorkloadTrainer(compressed, study.folder, exporter=export_network)
    found = []
    for trial in front(study.trials, study.spec.objective):
        weights = best_weights_file(study.folder, trial.number, trial.finished_rungs[-1].rung)
        file = place / "front" / f"{trial.number}.onnx"
        file.parent.mkdir(exist_ok=True)
        list(export_trained(trainer, trial.config, str(weights), str(file), tick=lambda: None))
        network, batches = OnnxModule(file), trainer.splits.validation.batches(128)
        plain = {name: value for name, value in trial.config.items() if not name.startswith("compress_")}
        metrics = compressed.inner.evaluate(network, batches, type(trial.config)(plain))  # type: ignore[attr-defined]
        what = f"trial {trial.number}, {dict(trial.config)}"
        found.append({"what": what, "plain": False, "file": str(file), METRIC: metrics[METRIC]})
    return found, len(study.trials)


def measure_models(found: list[dict[str, Any]], folder: Path) -> None:
    """Time all models interleaved, with nothing else running, and pack them."""
    from onefold.serving.export import samples_beside

    here = host(folder / "devices")
    models = [model for one in found for way in ("two steps", "one loop") for model in one[way]]
    donors = {one["workload"]: samples_beside(Path(one["two steps"][0]["file"])) for one in found}
    for one in found:
        for model in one["one loop"]:
            beside = samples_beside(Path(model["file"]))
            if not beside.exists():
                beside.write_bytes(donors[one["workload"]].read_bytes())
    with open_session(here, here) as session:
        served = measure_single_sample(session, [Path(model["file"]) for model in models], 2)
    for model in models:
        content = Path(model["file"]).read_bytes()
        model["latency_s"] = served[Path(model["file"])].latency_s
        model["encoded_bytes"] = min(len(pack(content, encoding)) for encoding in ENCODINGS)
        del model["file"]


def hypervolume(models: list[dict[str, Any]], best: float, largest: dict[str, float]) -> float:
    """Return the volume that the models dominate, each axis scaled from 0 (the reference point) to 1 (the ideal)."""
    points = [
        (
            (model[METRIC] - best + WITHIN) / (1 - best + WITHIN),
            *(1 - model[cost] / largest[cost] for cost in COSTS),
        )
        for model in models
    ]
    points = [point for point in points if min(point) > 0]
    volume, edges = 0.0, sorted({point[0] for point in points})
    for below, edge in zip([0.0, *edges], edges):  # slices along the first axis, each a union of rectangles
        area, reached = 0.0, 0.0
        for _, x, y in sorted((point for point in points if point[0] >= edge), key=lambda point: -point[1]):
            area += x * max(0.0, y - reached)
            reached = max(reached, y)
        volume += (edge - below) * area
    return volume


def main() -> None:
    quick = arguments(__doc__).quick
    workloads, seeds = (list(WORKLOADS)[:1], SEEDS[:1]) if quick else (list(WORKLOADS), SEEDS)
    cores = sorted(os.sched_getaffinity(0))
    workers = min(5, len(cores))
    side_by_side = max(1, len(cores) // workers)
    sizes = (4, 2) if quick else (TRIALS, MAX_EPOCHS)
    with tempfile.TemporaryDirectory() as folder:
        shares = [cores[index * workers : (index + 1) * workers] for index in range(side_by_side)]
        jobs = [(workload, seed, folder, *sizes) for workload in workloads for seed in seeds]
        found = []
        for wave in (jobs[at : at + side_by_side] for at in range(0, len(jobs), side_by_side)):
            with ProcessPoolExecutor(len(wave), multiprocessing.get_context("spawn")) as pool:
                given = [(*job[:3], share, *job[3:]) for job, share in zip(wave, shares)]
                found += list(pool.map(compare, given))
        measure_models(found, Path(folder))
    rows = []
    for one in found:
        best = max(model[METRIC] for model in one["two steps"] if model["plain"])
        every = [*one["two steps"], *one["one loop"]]
        largest = {cost: max(model[cost] for model in every) for cost in COSTS}
        volumes = {way: hypervolume(one[way], best, largest) for way in ("two steps", "one loop")}
        rows.append(
            {
                "workload": one["workload"], "seed": one["seed"], "seconds": one["seconds"],
                "loop seconds": one["loop seconds"], "trials in the loop": one["begun"],
                "best plain": best, **volumes,
                "ratio": volumes["one loop"] / max(volumes["two steps"], 1e-9),
            }
        )  # fmt: skip
    table(rows)
    claims = []
    for workload in workloads:
        ratios = [row["ratio"] for row in rows if row["workload"] == workload]
        said = f"{median(ratios):.2f}x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        claims.append(Claim(f"{workload}: hypervolume of one loop against two steps", "> 1x", said, median(ratios) > 1))
    conclude("in_loop", claims, {"rows": rows, "found": found}, quick=quick)


if __name__ == "__main__":
    main()
