"""The serving space: the points that may be measured on a device."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.serving import ServingPoint

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 100)
GRAPH_LEVELS = ("none", "basic", "extended", "all")
EXECUTIONS = ("sequential", "parallel")


@suggest_fields
@dataclass(frozen=True, slots=True)
class ServingSpace:
    """The values of each serving knob; the space is their product.

    Empty `threads` stand for 1, 2, 4, … and all cores of the device, which `on` fills in. Raises InputError for unknown
    values, and for numbers that are not increasing from 1 or more.
    """

    batch_sizes: tuple[int, ...] = BATCH_SIZES
    threads: tuple[int, ...] = ()
    graph_levels: tuple[str, ...] = GRAPH_LEVELS
    executions: tuple[str, ...] = EXECUTIONS
    precisions: tuple[str, ...] = ("fp32",)

    def __post_init__(self) -> None:
        for name, known in (("graph_levels", GRAPH_LEVELS), ("executions", EXECUTIONS), ("precisions", ("fp32",))):
            for value in getattr(self, name):
                if value not in known:
                    raise InputError(unknown(name, value, known))
        for name in ("batch_sizes", "threads"):
            numbers = getattr(self, name)
            if name == "threads" and not numbers:
                continue
            if not numbers or min(numbers) < 1 or list(numbers) != sorted(set(numbers)):
                raise InputError(f"{name} must be integers from 1 in increasing order, got {list(numbers)}")

    def on(self, cores: int) -> ServingSpace:
        """Return the space on a device with this number of cores, the largest useful number of threads."""
        powers = [2**i for i in range(cores.bit_length()) if 2**i < cores]
        threads = self.threads or (*powers, cores)
        return replace(self, threads=tuple(n for n in threads if n <= cores) or (1,))

    def points(self) -> list[ServingPoint]:
        """Return all points of the space."""
        return [
            ServingPoint(batch_size, threads, graph_level, execution, precision)
            for threads, graph_level, execution, precision, batch_size in itertools.product(
                self.threads, self.graph_levels, self.executions, self.precisions, self.batch_sizes
            )
        ]

    def __len__(self) -> int:
        knobs = (self.batch_sizes, self.threads, self.graph_levels, self.executions, self.precisions)
        return math.prod(map(len, knobs))
