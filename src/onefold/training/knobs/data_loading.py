"""The knob of data loading: the number of data loader workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.vocabulary.records import Value


class LoaderWorkers:
    """The number of processes that prefetch batches of a torch `Dataset`; 0 loads them in the training process."""

    name, reduces_precision, may_fail, setup_s = "loaders", False, False, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.loader is None:
            raise KnobUnavailable("the data are arrays in memory, which need no data loader")
        return tuple(dict.fromkeys([context.loader.workers, 0, 1, len(context.cores)]))

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        if context.loader is None:
            yield
            return
        before, context.loader.workers = context.loader.workers, int(value or 0)
        try:
            yield
        finally:
            context.loader.workers = before
