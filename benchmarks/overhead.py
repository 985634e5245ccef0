"""Overhead of a durable trial: 200 trials of 10 ms, compared with Ray Tune and Optuna.

Each trial sleeps for 10 ms, so two workers need 1 s at best. Start-up (processes, imports) is reported separately,
since it is paid once. Ray Tune runs the same number of concurrent trials, with its defaults otherwise.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

from claims import Claim, Stopwatch, arguments, conclude, table

WORK_S = 0.010
WORKERS = 2


def work(config: dict[str, float]) -> float:
    """Sleep, and return a loss."""
    time.sleep(WORK_S)
    return (config["x"] - 0.3) ** 2 + (config["y"] - 0.7) ** 2


def onefold_run(trials: int, search: str) -> dict[str, float]:
    """Return the times of a study of Onefold."""
    from onefold import Budget, Float, ParallelismOptions, Space, Study

    space = Space(x=Float(0, 1), y=Float(0, 1))
    started: list[float] = []

    def on_event(event: object) -> None:
        if getattr(event, "kind", "") == "started":
            started.append(time.monotonic())

    with tempfile.TemporaryDirectory() as home, Stopwatch() as watch:
        study = Study(
            work,
            space,
            budget=Budget(trials=trials),
            home=home,
            on_event=on_event,
            search=search,
            parallelism=ParallelismOptions(parallel=WORKERS),
        )
        study.run()
        ended = time.monotonic()
    return {"total_s": watch.seconds, "loop_s": ended - started[0]}


def optuna_run(trials: int) -> dict[str, float]:
    """Return the times of a study of Optuna on SQLite."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        storage = f"sqlite:///{Path(folder) / 'optuna.db'}"
        study = optuna.create_study(storage=storage, sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(
            lambda trial: work({"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}),
            n_trials=trials,
            n_jobs=WORKERS,
        )
    return {"total_s": watch.seconds, "loop_s": watch.seconds}


def ray_run(trials: int) -> dict[str, float]:
    """Return the times of Ray Tune."""
    import ray
    from ray import tune

    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, configure_logging=False)
        started = time.monotonic()
        tuner = tune.Tuner(
            lambda config: {"loss": work(config)},
            param_space={"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, metric="loss", mode="min", max_concurrent_trials=WORKERS),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        tuner.fit()
        loop_s = time.monotonic() - started
        ray.shutdown()
    return {"total_s": watch.seconds, "loop_s": loop_s}


def main() -> None:
    options = arguments(__doc__)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    trials, peer_trials, rounds = (200, 20, 2) if options.quick else (200, 60, 3)
    ideal = WORK_S / WORKERS
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):  # interleaved, so that noise affects all tuners alike
        for name, run in (
            ("onefold, TPE", lambda: onefold_run(trials, "tpe")),
            ("onefold, random", lambda: onefold_run(trials, "random")),
            ("optuna, TPE, SQLite", lambda: optuna_run(trials)),
        ):
            runs.setdefault(name, []).append(run())
    runs["ray tune, random"] = [ray_run(peer_trials)]
    rows = []
    for name, figures in runs.items():
        count = peer_trials if name.startswith("ray") else trials
        loop_s = median(figure["loop_s"] for figure in figures)
        rows.append(
            {
                "tuner": name,
                "trials": count,
                "start-up s": median(figure["total_s"] - figure["loop_s"] for figure in figures),
                "loop s": loop_s,
                "overhead ms/trial": 1000 * (loop_s / count - ideal),
            }
        )
    table(rows)
    overhead = {row["tuner"]: float(row["overhead ms/trial"]) for row in rows}
    onefold_ms = max(overhead["onefold, TPE"], overhead["onefold, random"])
    ratio = overhead["ray tune, random"] / onefold_ms
    claims = [
        Claim("overhead of a durable trial", "<= 20 ms", f"{onefold_ms:.1f} ms", onefold_ms <= 20),
        Claim("overhead of Ray Tune relative to Onefold", "> 50x", f"{ratio:.0f}x", ratio > 50),
    ]
    conclude("overhead", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
