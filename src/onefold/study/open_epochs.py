"""The epochs of the trials that run or are about to; those of all others stay in the store."""

from __future__ import annotations

from onefold.store import Store
from onefold.vocabulary.records import Epoch, Rung


class OpenEpochs:
    """Epochs by trial. Those of a promoted trial are read from the store again."""

    def __init__(self, store: Store, study: str) -> None:
        self._store = store
        self._study = study
        self._by_trial: dict[int, dict[tuple[int, int], Epoch]] = {}  # by rung and number

    def open(self, trial: int, *, is_new: bool = False) -> None:
        """Load the epochs of a trial from the store, unless it is new."""
        if trial not in self._by_trial:
            epochs = [] if is_new else self._store.epochs(self._study, trial)
            self._by_trial[trial] = {(epoch.rung, epoch.number): epoch for epoch in epochs}

    def add(self, epoch: Epoch) -> bool:
        """Add an epoch of an open trial; return False if it is known, since a restarted rung reports it again."""
        known = self._by_trial[epoch.trial]
        if (epoch.rung, epoch.number) in known:
            return False
        known[epoch.rung, epoch.number] = epoch
        return True

    def of(self, rung: Rung, since: int | None = None) -> list[Epoch]:
        """Return the epochs of a rung, or of all rungs of its trial from `since` on."""
        lowest = rung.rung if since is None else since
        return [epoch for epoch in self._by_trial[rung.trial].values() if lowest <= epoch.rung <= rung.rung]

    def close(self, trial: int) -> None:
        """Forget the epochs of a trial whose rung has ended."""
        del self._by_trial[trial]
