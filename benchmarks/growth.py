"""Growth: a study of 10,000 trials, and a store of 1,000,000 epochs, compared with Optuna on SQLite.

The processor time of the coordinator with its store is taken per trial, over the last 100 trials before each size, from
one study of a plain function that reports three epochs. Optuna runs the same trials with the same sampler and reports
the same three values, on SQLite with a write-ahead log, which is its faster setting. Its study is filled with finished
trials up to each window, since only the window is timed. Start-up and handover are not part of a trial.

The stored study has 100 epochs in each trial and is then extended: resuming is timed from outside, from the start of
the process to its first new trial, as is its peak memory. `list`, `show` and `report` are timed as commands.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims import Claim, Stopwatch, arguments, conclude, table

REPORTED = 3  # epochs of each trial that is timed
WINDOW = 100  # trials whose processor time is taken
SIZES, QUICK_SIZES = (250, 500, 1_000, 2_500, 5_000, 10_000), (250, 500, 1_000)
STORED, QUICK_STORED = (10_000, 100), (1_000, 100)  # trials, and epochs of each
SAMPLERS = ("random", "tpe")
BASE_SIZE = 500  # the size that the largest is compared with


def loss(x: float, y: float, epoch: int) -> float:
    """Return the loss of a trial after an epoch."""
    return ((x - 0.3) ** 2 + (y - 0.7) ** 2) / epoch


def function(config: Any, run: Any) -> Any:
    """Report the loss of each epoch, at no cost."""
    for epoch in range(1, run.epochs + 1):
        yield {"loss": loss(config["x"], config["y"], epoch)}


def create_study(name: str, home: Path, trials: int, epochs: int, sampler: str, on_event: Any = None) -> Any:
    """Return a study of the function in the process of its coordinator."""
    from onefold import Budget, Float, Objective, ParallelismOptions, SearchOptions, Space, Study

    return Study(
        function,
        Space(x=Float(0, 1), y=Float(0, 1)),
        objective=Objective(minimize="loss"),
        budget=Budget(trials=trials, max_epochs=epochs),
        search=SearchOptions(sampler, rungs="none"),
        parallelism=ParallelismOptions(engine="inline"),
        knobs="off",
        name=name,
        home=home,
        on_event=on_event,
    )


def onefold_times(sampler: str, sizes: tuple[int, ...], home: Path) -> dict[int, float]:
    """Return the processor seconds per trial before each size."""
    times: list[float] = []

    def on_event(event: Any) -> None:
        if event.kind == "trial":
            times.append(time.process_time())

    create_study(sampler, home, sizes[-1] + 1, REPORTED, sampler, on_event).run()
    return {size: (times[size] - times[size - WINDOW]) / WINDOW for size in sizes}


def optuna_times(sampler: str, sizes: tuple[int, ...], home: Path) -> dict[int, float]:
    """Return the processor seconds per trial before each size."""
    import optuna
    from sqlalchemy import event

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    storage = optuna.storages.RDBStorage(f"sqlite:///{home / sampler}.db")
    event.listen(storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode = WAL"))
    storage.engine.dispose()  # connect again, with the write-ahead log
    samplers = {
        "random": lambda: optuna.samplers.RandomSampler(seed=0),
        "tpe": lambda: optuna.samplers.TPESampler(seed=0, multivariate=True, group=True, constant_liar=True),
    }
    study = optuna.create_study(storage=storage, sampler=samplers[sampler](), pruner=optuna.pruners.NopPruner())
    rng, unit = random.Random(0), optuna.distributions.FloatDistribution(0, 1)
    times, finished = {}, 0
    for size in sizes:
        for _ in range(size - WINDOW - finished):
            x, y = rng.random(), rng.random()
            values = {epoch: loss(x, y, epoch) for epoch in range(1, REPORTED + 1)}
            study.add_trial(
                optuna.create_trial(
                    params={"x": x, "y": y},
                    distributions={"x": unit, "y": unit},
                    value=values[REPORTED],
                    intermediate_values=values,
                )
            )
        started = time.process_time()
        for _ in range(WINDOW):
            trial = study.ask()
            x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
            for epoch in range(1, REPORTED + 1):
                trial.report(loss(x, y, epoch), epoch)
            study.tell(trial, loss(x, y, REPORTED))
        times[size] = (time.process_time() - started) / WINDOW
        finished = size
    return times


def store_study(home: Path, trials: int, epochs: int) -> None:
    """Store a study that has ended, with all its trials and epochs."""
    from onefold.study import Home
    from onefold.study.coordinator import DONE
    from onefold.vocabulary.records import (
        Config,
        Energy,
        Epoch,
        Grant,
        Measurement,
        Rung,
        RungState,
        StudyState,
        Trial,
        TrialState,
    )  # fmt: skip

    create_study("big", home, trials, epochs, "random")
    rng, cost = random.Random(0), Measurement(0.5, 0.4, Energy(3.25, "modelled"), 100_000_000)
    with closing(Home(home).store()) as store:
        with store.transaction():
            for number in range(trials):
                x, y = rng.random(), rng.random()
                state, grant = TrialState.DONE, Grant(1, epochs, 1.0)
                store.save_trial("big", Trial(number, Config(x=x, y=y), state))
                metrics = {"loss": loss(x, y, epochs), "train_time_s": 50.0}
                rung = Rung(number, number, 0, 0, grant, state=RungState.DONE, metrics=metrics, measurement=cost)
                store.save_rung("big", replace(rung, started_s=50.0 * number, ended_s=50.0 * number + 50))
                for epoch in range(1, epochs + 1):
                    reported = {"loss": loss(x, y, epoch), "train_time_s": 0.5 * epoch}
                    store.save_epoch("big", Epoch(number, epoch, 0, reported, cost))
        store.save_study(replace(store.study("big"), state=StudyState.DONE, reason=DONE))


def resume(home: Path) -> None:
    """Resume the stored study, and end the process at its first new trial."""
    from onefold import Study

    def on_event(event: Any) -> None:
        if event.kind == "trial":
            os._exit(0)

    Study.open("big", home=home, workload=function, on_event=on_event).run()


def run_process(*arguments: object) -> tuple[float, int]:
    """Return the seconds and the peak memory of a process, measured from outside."""
    with Stopwatch() as watch:
        child = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{arguments} ended with {child.returncode}")
    return watch.seconds, usage.ru_maxrss * 1024


def time_commands(home: Path, trials: int, epochs: int) -> dict[str, float]:
    """Return the seconds of each command over a large store, and the memory of a resumed study."""
    from onefold import Study

    store_study(home, trials, epochs)
    figures = {}
    for command in ("list", "show", "report"):
        study = () if command == "list" else ("big",)
        output = ("--output", home / "report.html") if command == "report" else ()
        figures[f"{command} s"], _ = run_process("-m", "onefold.cli", command, *study, *output, "--home", home)
    Study.open("big", home=home, workload=function).extend(trials=1)
    figures["resume s"], memory = run_process(__file__, "--resume", home)
    return {**figures, "memory MB": memory / 1e6}


def main() -> None:
    options = arguments(__doc__)
    sizes, (trials, epochs) = (QUICK_SIZES, QUICK_STORED) if options.quick else (SIZES, STORED)
    rows: list[dict[str, Any]] = []
    for sampler in SAMPLERS:
        with tempfile.TemporaryDirectory() as folder:
            onefold_s = onefold_times(sampler, sizes, Path(folder))
            optuna_s = optuna_times(sampler, sizes, Path(folder))
        rows += [
            {
                "sampler": sampler,
                "trials": size,
                "onefold ms/trial": 1000 * onefold_s[size],
                "optuna ms/trial": 1000 * optuna_s[size],
                "ratio": onefold_s[size] / optuna_s[size],
            }
            for size in sizes
        ]
    table(rows)
    with tempfile.TemporaryDirectory() as folder:
        figures = time_commands(Path(folder), trials, epochs)
    table([{"trials": trials, "epochs": trials * epochs, **figures}])
    cost = {(row["sampler"], row["trials"]): row["onefold ms/trial"] for row in rows}
    growth = max(cost[sampler, sizes[-1]] / cost[sampler, BASE_SIZE] for sampler in SAMPLERS)
    worst = max(row["ratio"] for row in rows)
    slowest = max(figures["list s"], figures["show s"])
    resumed, reported, memory = figures["resume s"], figures["report s"], figures["memory MB"]
    claims = [
        Claim(
            f"processor time per trial at {sizes[-1]} trials relative to {BASE_SIZE}",
            "<= 1.3x",
            f"{growth:.2f}x",
            growth <= 1.3,
        ),
        Claim(
            "processor time per trial relative to Optuna's, worst size and sampler", "< 1x", f"{worst:.2f}x", worst < 1
        ),
        Claim(f"resuming a study of {trials} trials, to its first new trial", "< 2 s", f"{resumed:.2f} s", resumed < 2),
        Claim(f"`list` and `show` with {trials * epochs} epochs", "< 1 s", f"{slowest:.2f} s", slowest < 1),
        Claim(f"`report` with {trials * epochs} epochs", "< 10 s", f"{reported:.2f} s", reported < 10),
        Claim(
            f"peak memory of the coordinator with {trials * epochs} epochs",
            "< 500 MB",
            f"{memory:.0f} MB",
            memory < 500,
        ),
    ]
    conclude("growth", claims, {"per trial": rows, "stored": figures}, quick=options.quick)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--resume"]:
        resume(Path(sys.argv[2]))
    main()
