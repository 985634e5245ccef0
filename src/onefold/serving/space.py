"""The serving space: which points may be tried on a device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.serving import ServingPoint

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 100)
GRAPH_LEVELS = ("none", "basic", "extended", "all")
EXECUTIONS = ("sequential", "parallel")


@dataclass(frozen=True, slots=True)
class ServingSpace:
    """What may vary when a model is served: every combination of these.

    Without `threads` they are what the device has: `on` puts 1, 2, 4, … and all its cores in.
    """

    batch_sizes: tuple[int, ...] = BATCH_SIZES
    threads: tuple[int, ...] = ()
    graph_levels: tuple[str, ...] = GRAPH_LEVELS
    executions: tuple[str, ...] = EXECUTIONS
    precisions: tuple[str, ...] = ("fp32",)

    def __post_init__(self) -> None:
        for name, known in (("graph_levels", GRAPH_LEVELS), ("executions", EXECUTIONS), ("precisions", ("fp32",))):
            for given in getattr(self, name):
                if given not in known:
                    raise InputError(f"{given!r} is not one of the {name.replace('_', ' ')}{suggestion(given, known)}")
        for name in ("batch_sizes", "threads"):
            numbers = getattr(self, name)
            if name == "threads" and not numbers:
                continue
            if not numbers or min(numbers) < 1 or list(numbers) != sorted(set(numbers)):
                raise InputError(f"{name} are whole numbers from 1 up, in rising order, but got {list(numbers)}")

    def on(self, cores: int) -> ServingSpace:
        """The space on a device with so many cores, which is as many threads as make sense there."""
        powers = [2**i for i in range(cores.bit_length()) if 2**i < cores]
        wanted = self.threads or (*powers, cores)
        return replace(self, threads=tuple(n for n in wanted if n <= cores) or (1,))

    def points(self) -> list[ServingPoint]:
        """All of them."""
        return [
            ServingPoint(batch_size, threads, graph_level, execution, precision)
            for threads, graph_level, execution, precision, batch_size in itertools.product(
                self.threads, self.graph_levels, self.executions, self.precisions, self.batch_sizes
            )
        ]

    def __len__(self) -> int:
        parts: Sequence[Sequence[object]] = (
            self.batch_sizes, self.threads, self.graph_levels, self.executions, self.precisions,
        )  # fmt: skip
        total = 1
        for part in parts:
            total *= len(part)
        return total
