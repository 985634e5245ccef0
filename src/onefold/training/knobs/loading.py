"""The knob of loading: who reads the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value


class Loaders:
    """How many processes read batches ahead where the data are a torch `Dataset`; with none, the trial reads itself."""

    name, reduces, risky, start_s = "loaders", False, False, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if job.loading is None:
            raise NotHere("the data are arrays in memory: nothing is to be read")
        return tuple(dict.fromkeys([job.loading.workers, 0, 1, len(job.cores)]))

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        if job.loading is None:
            yield
            return
        before, job.loading.workers = job.loading.workers, int(value or 0)
        try:
            yield
        finally:
            job.loading.workers = before
