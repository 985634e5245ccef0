"""Which knobs there are, which of them can be turned here, and turning several at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from onefold.training.knobs.accelerators import Gpus
from onefold.training.knobs.arithmetic import Precision, TensorFloat
from onefold.training.knobs.knob import Job, Knob, NotHere
from onefold.training.knobs.loading import Loaders
from onefold.training.knobs.memory import Allocator, MemoryFormat
from onefold.training.knobs.processor import Cores, Frequency, Threads
from onefold.training.knobs.program import Compiling, Update
from onefold.vocabulary.records import Value

# What promises most comes first: whoever tries them one after the other tries them in this order.
KNOBS: tuple[Knob, ...] = (
    Threads(),
    Gpus(),
    Loaders(),
    MemoryFormat(),
    Precision(),
    TensorFloat(),
    Allocator(),
    Update(),
    Cores(),
    Frequency(),
    Compiling(),
)
REDUCING = frozenset(knob.name for knob in KNOBS if knob.reduces)


@dataclass(frozen=True)
class Offer:
    """The knobs that can be turned for a job, and why the others cannot."""

    knobs: Mapping[str, Sequence[Value]]  # by name: what they can be turned to, what was found first
    missing: Mapping[str, str]

    @property
    def found(self) -> dict[str, Value]:
        """How they stand."""
        return {name: options[0] for name, options in self.knobs.items()}


def catalogue(job: Job, *, reduced: bool = False, patience_s: float = 0.0, knobs: Sequence[Knob] = KNOBS) -> Offer:
    """What can be turned for a job: `reduced` allows less precision, `patience_s` is what turning one may take."""
    here: dict[str, Sequence[Value]] = {}
    missing: dict[str, str] = {}
    for knob in knobs:
        try:
            if knob.reduces and not reduced:
                raise NotHere("it can change what is learned and was not allowed")
            if knob.start_s > patience_s:
                raise NotHere(f"turning it takes about {knob.start_s:g} s, too long for what is left to train")
            here[knob.name] = tuple(knob.options(job))
        except NotHere as reason:
            missing[knob.name] = str(reason)
        except Exception as error:  # noqa: BLE001 - networks and optimisers come in all shapes; a knob is worth no trial
            missing[knob.name] = f"it does not suit this training ({type(error).__name__}: {error})"
    return Offer(here, missing)


@contextmanager
def turned(setting: Mapping[str, Value], job: Job, knobs: Sequence[Knob] = KNOBS) -> Iterator[None]:
    """Turns several knobs for the block; all are put back, the last one first."""
    with ExitStack() as stack:
        for knob in knobs:
            if knob.name in setting:
                stack.enter_context(knob.turned(setting[knob.name], job))
        yield


def runs_with(name: str, value: Value, job: Job, batch: Any, knobs: Sequence[Knob] = KNOBS) -> bool:
    """Whether the network is seen to take a batch with this knob turned so. What is not risky is not tried.

    A network that asks for its numbers to lie in a certain order fails with another one, and a trial must not.
    """
    knob = next(knob for knob in knobs if knob.name == name)
    if not knob.risky:
        return True
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        return False
    modes = [(module, module.training) for module in job.model.modules()]  # some layers may be frozen
    drawn_from = [job.device] if job.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(drawn_from), torch.no_grad(), knob.turned(value, job):
            job.model.eval()  # nothing is drawn and no statistics are kept
            job.model(*job.adapted(batch)[:-1])
    except Exception:  # noqa: BLE001 - a network may fail in any way
        return False
    finally:
        for module, training in modes:
            module.training = training
    return True
