"""Checks of what must hold after a disturbance."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold.model_folder import MANIFEST, open_folder
from onefold.model_folder.manifest import DOCUMENTS
from onefold.study import Home
from onefold.vocabulary.errors import OnefoldError
from onefold.vocabulary.records import RungState, StudyState

DETERMINED = ("train_loss", "loss", "accuracy", "parameters")  # by the seed, unlike times, energy and latencies


@dataclass(frozen=True)
class Facts:
    """The decisions and results of a study, without times."""

    decisions: list[Any]
    results: list[Any]
    epochs: list[Any]
    is_done: bool

    def lost(self, undisturbed: Facts) -> int:
        """Return how many results and epochs of the undisturbed study are missing or different."""
        return _missing(undisturbed.results, self.results) + _missing(undisturbed.epochs, self.epochs)

    @property
    def twice(self) -> int:
        """Return how many rungs and epochs were recorded more than once."""
        keys = [("rung", *result[:1]) for result in self.results] + [("epoch", *epoch[:3]) for epoch in self.epochs]
        return len(keys) - len(set(keys))


def facts(home: Path, study: str) -> Facts:
    """Return the facts of a study."""
    with closing(Home(home).store()) as store:
        trials, epochs, record = store.trials(study), store.epochs(study), store.study(study)
    rungs = sorted((rung for trial in trials for rung in trial.rungs), key=lambda rung: rung.decision)
    return Facts(
        [(r.decision, r.trial, r.rung, r.grant, repr(sorted(trials[r.trial].config.items()))) for r in rungs],
        [(r.decision, _determined(r.metrics)) for r in rungs if r.state is RungState.DONE],
        [(e.trial, e.rung, e.number, _determined(e.metrics)) for e in epochs],
        record.state is StudyState.DONE,
    )


def _determined(metrics: Any) -> tuple[tuple[str, float], ...]:
    return tuple((name, metrics[name]) for name in DETERMINED if name in metrics)


def _missing(expected: list[Any], actual: list[Any]) -> int:
    return sum((Counter(map(repr, expected)) - Counter(map(repr, actual))).values())


def fault_of_folder(folder: Path) -> str | None:
    """Return why a model folder is not one complete generation; None if it is, or does not exist."""
    if not folder.exists():
        return None
    try:
        opened = open_folder(folder)
    except OnefoldError as error:
        return str(error)
    if opened.manifest is None:
        return f"{folder} has no {MANIFEST}"
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in DOCUMENTS and path.name not in {MANIFEST, *opened.manifest.files}:
            return f"{path} is not in the manifest"
    previous = folder / "previous"
    return fault_of_folder(previous) if previous.is_dir() else None


def leftovers(folder: Path) -> list[str]:
    """Return the temporary folders and abandoned generations that are left below a folder."""
    temporary = [path.name for path in (folder / "tmp").glob("onefold-*")]
    return temporary + [str(path.relative_to(folder)) for path in folder.rglob(".*.new-*")]
