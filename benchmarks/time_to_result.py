"""Time to a tuned and trained model: LeNet on Fashion-MNIST, compared with Ray Tune (Optuna search, ASHA) and Optuna.

All tuners get the same space (10 hyperparameters), the same number of trials, the same maximum of epochs, the same two
cores and the same training code: an epoch is `Workload.train_epoch` followed by `Workload.evaluate` on the validation
split. The reported accuracy is the test accuracy of the model that the tuner itself trained. Onefold runs with its
defaults. Ray Tune runs trials of one CPU each, Optuna two processes of one thread each over a journal storage, its
fastest setup on one machine; both load the data once. Wall time includes imports and start-up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, Stopwatch, arguments, conclude, table

TUNERS = ("onefold", "optuna", "ray")
# The bundled workload's space without its slowest values, so that three tuners and three seeds fit into half an hour.
CHOICES: dict[str, Any] = {
    "filters": [4, 8, 12, 16],
    "kernel": [3, 5],
    "hidden": [32, 64, 128],
    "activation": ["relu", "tanh"],
    "pooling": ["max", "avg"],
    "batch_size": [64, 128, 256, 512],
    "optimizer": ["adam", "sgd", "rmsprop"],
}
RANGES: dict[str, Any] = {"dropout": (0.0, 0.5, False), "lr": (1e-4, 1e-1, True)}
MOMENTUM = (0.0, 0.99)  # of SGD only
MAX_EPOCHS = 9
ETA = 3  # of the peers: Optuna's default, and usual for Ray Tune, whose default is 4


# One tuner and one seed per process, which prints the test accuracy.


def run_onefold(trials: int, seed: int, folder: Path) -> dict[str, float]:
    """Tune with Onefold's defaults."""
    from onefold import Budget, Choice, Float, Space, Study

    parameters: dict[str, Any] = {name: Choice(*options) for name, options in CHOICES.items()}
    parameters |= {name: Float(low, high, log=log) for name, (low, high, log) in RANGES.items()}
    space = Space(**parameters, momentum=Float(*MOMENTUM, when={"optimizer": "sgd"}))
    budget = Budget(trials=trials, max_epochs=MAX_EPOCHS)
    study = Study("fashion", space, budget=budget, seed=seed, home=folder)
    result = study.run()
    joules = [trial.cost.energy.joules or 0.0 for trial in result.trials]
    return {"test": result.test["accuracy"], "validation": result.metrics["accuracy"], "joules": sum(joules)}


class PlainTraining:
    """The training code as a user of a peer would call it: one model, epoch by epoch."""

    def __init__(self, config: dict[str, Any], seed: int, data: Any) -> None:
        import torch

        from onefold import Config
        from onefold.training.splits import open_split
        from onefold.vocabulary.workload_reference import load

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.torch = torch
        self.workload = load("fashion")
        self.config = Config(config)
        cpu = torch.device("cpu")
        self.splits = {part: open_split(getattr(data, part), cpu, part) for part in ("train", "validation", "test")}
        self.model = self.workload.build(self.config)
        self.optimizer = self.workload.optimizer(self.model, self.config)
        self.shuffle = torch.Generator().manual_seed(seed)

    def epoch(self) -> float:
        """Train an epoch; return the validation accuracy."""
        self.model.train()
        batches = self.workload.batches(self.splits["train"], self.config, self.shuffle)
        self.workload.train_epoch(self.model, batches, self.optimizer, self.config)
        return self.accuracy("validation")

    def accuracy(self, part: str) -> float:
        """Return the accuracy on a part of the data."""
        self.model.eval()
        with self.torch.no_grad():
            return float(self.workload.evaluate(self.model, self.splits[part].batches(512), self.config)["accuracy"])


def arrays() -> Any:
    """Load the dataset, once per process."""
    from onefold.vocabulary.workload_reference import load

    return load("fashion").data()


def suggest(trial: Any) -> dict[str, Any]:
    """Return a draw from the same space, expressed for Optuna."""
    values = {name: trial.suggest_categorical(name, options) for name, options in CHOICES.items()}
    values |= {name: trial.suggest_float(name, low, high, log=log) for name, (low, high, log) in RANGES.items()}
    if values["optimizer"] == "sgd":
        values["momentum"] = trial.suggest_float("momentum", *MOMENTUM)
    return values


def optuna_worker(journal: str, trials: int, seed: int) -> None:
    """Run trials in one of Optuna's processes until the study has enough."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(
        study_name="s",
        storage=JournalStorage(JournalFileBackend(journal)),
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=MAX_EPOCHS, reduction_factor=ETA),
    )

    data = arrays()

    def objective(trial: Any) -> float:
        training = PlainTraining(suggest(trial), seed, data)
        accuracy = 0.0
        for epoch in range(1, MAX_EPOCHS + 1):
            accuracy = training.epoch()
            trial.report(accuracy, epoch)
            if epoch < MAX_EPOCHS and trial.should_prune():
                raise optuna.TrialPruned
        trial.set_user_attr("test", training.accuracy("test"))
        return accuracy

    limit = optuna.study.MaxTrialsCallback(trials, states=None)
    study.optimize(objective, callbacks=[limit])


def run_optuna(trials: int, seed: int, folder: Path) -> dict[str, float]:
    """Tune with two processes of Optuna."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = str(folder / "journal.log")
    study = optuna.create_study(
        study_name="s", storage=JournalStorage(JournalFileBackend(journal)), direction="maximize"
    )
    command = [sys.executable, __file__, "--optuna-worker", journal, str(trials)]
    workers = [subprocess.Popen([*command, str(seed * 10 + i)]) for i in range(2)]
    if any(worker.wait() for worker in workers):
        sys.exit("an Optuna worker failed")
    best = study.best_trial
    return {"test": best.user_attrs["test"], "validation": best.value or 0.0}


def run_ray(trials: int, seed: int, folder: Path) -> dict[str, Any]:
    """Tune with Ray Tune: Optuna search and ASHA."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    def trainable(config: dict[str, Any], data: Any) -> None:
        training = PlainTraining(config, seed, data)
        for epoch in range(1, MAX_EPOCHS + 1):
            accuracy = training.epoch()
            test = training.accuracy("test") if epoch == MAX_EPOCHS else -1.0
            tune.report({"accuracy": accuracy, "test": test})

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trainable, data=arrays()), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            num_samples=trials,
            metric="accuracy",
            mode="max",
            search_alg=OptunaSearch(suggest, metric="accuracy", mode="max", seed=seed),
            scheduler=ASHAScheduler(max_t=MAX_EPOCHS, grace_period=1, reduction_factor=ETA),
            max_concurrent_trials=2,
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    finished = [result for result in tuner.fit() if result.metrics and result.metrics.get("test", -1.0) >= 0]
    best = max(finished, key=lambda result: result.metrics["accuracy"])
    ray.shutdown()
    return {"test": best.metrics["test"], "validation": best.metrics["accuracy"], "config": dict(best.config)}


def run_tuner(tuner: str, trials: int, seed: int) -> dict[str, Any]:
    """Run a tuner in a new process and measure its wall time."""
    with Stopwatch() as watch:
        ended = subprocess.run(
            [sys.executable, __file__, "--one", tuner, str(trials), str(seed)],
            stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "RAY_AIR_NEW_OUTPUT": "0"},
        )  # fmt: skip
    figures = json.loads(ended.stdout.strip().splitlines()[-1])
    figures.pop("config", None)
    return {"tuner": tuner, "seed": seed, "wall s": watch.seconds, **figures}


def main() -> None:
    if "--optuna-worker" in sys.argv:
        journal, trials, seed = sys.argv[-3:]
        optuna_worker(journal, int(trials), int(seed))
        return
    if "--one" in sys.argv:
        tuner, trials, seed = sys.argv[-3:]
        run = {"onefold": run_onefold, "optuna": run_optuna, "ray": run_ray}[tuner]
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(run(int(trials), int(seed), Path(folder))))
        return

    options = arguments(__doc__)
    trials, seeds = (6, [0]) if options.quick else (18, [0, 1, 2])
    rows = []
    for seed in seeds:  # interleaved, so that noise affects all tuners alike
        for tuner in TUNERS:
            rows.append(run_tuner(tuner, trials, seed))
            table(rows[-1:])
    table(rows)
    walls = {tuner: [row["wall s"] for row in rows if row["tuner"] == tuner] for tuner in TUNERS}
    tests = {tuner: [row["test"] for row in rows if row["tuner"] == tuner] for tuner in TUNERS}
    claims = []
    for peer, title, bar in (("ray", "Ray Tune", 0.5), ("optuna", "Optuna", 0.8)):
        ratio = median(onefold_s / peer_s for onefold_s, peer_s in zip(walls["onefold"], walls[peer]))
        gain = sum(tests["onefold"]) / len(seeds) - sum(tests[peer]) / len(seeds)
        claims.append(Claim(f"wall time relative to {title}", f"<= {bar}x", f"{ratio:.2f}x", ratio <= bar))
        claims.append(Claim(f"mean test accuracy minus that of {title}", ">= +0", f"{gain:+.4f}", gain >= 0))
    conclude("time_to_result", claims, rows, quick=options.quick)


if __name__ == "__main__":
    main()
