"""What stands in for a steering where nothing is to be found out: knobs left alone, or chosen by the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from onefold.training.knobs import Job, catalogue, turned
from onefold.training.knobs.catalogue import REDUCING
from onefold.training.probing import Setting
from onefold.vocabulary.knobs import Settled, Steered
from onefold.vocabulary.records import Epoch


class Untouched:
    """No steering: the knobs stay as they are."""

    def __init__(self, note: str = "", settled: Settled | None = None) -> None:
        self._note = note
        self.settled = settled

    is_turned_at_rest = False

    def is_to_blame(self, error: Exception) -> bool:  # noqa: ARG002 - for none
        """Never."""
        return False

    def given_up(self, why: str) -> Untouched:
        """Itself: there is nothing to give up."""
        self._note = why
        return self

    def steered(self, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches as they are."""
        return batches

    def at_rest(self) -> AbstractContextManager[None]:
        """Nothing is turned."""
        return nullcontext()

    def put_back(self) -> None:
        """There is nothing to put back."""

    def expect(self, left_s: float) -> None:
        """Nothing is made of it."""

    def report(self, epoch: Epoch) -> Steered | None:
        """The one note, if there is any."""
        note, self._note = self._note, ""
        return Steered(epoch.trial, epoch.rung, epoch.number, notes=(note,)) if note else None


class Chosen(Untouched):
    """Knobs that the configuration chose: they stand for the whole visit."""

    def __init__(self, job: Job, setting: Setting) -> None:
        super().__init__()
        self._job = job
        offer = catalogue(job, reduced=True)
        self._setting = {name: value for name, value in setting.items() if value in offer.knobs.get(name, ())}
        self._turned = ExitStack()

    def steered(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, as the knobs want them."""
        self.put_back()
        self._turned.enter_context(turned(self._setting, self._job))
        for batch in batches:
            yield self._job.adapted(batch)

    def at_rest(self) -> AbstractContextManager[None]:
        """The same knobs, but never with less precision."""
        return turned({name: value for name, value in self._setting.items() if name not in REDUCING}, self._job)

    def put_back(self) -> None:
        """Puts the knobs back to what was found."""
        self._turned.close()
        self._turned = ExitStack()
