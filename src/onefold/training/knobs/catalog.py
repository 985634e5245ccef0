"""All knobs: which of them are available for a training, and how several are set at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from onefold.training.knobs.accelerators import GpuCount
from onefold.training.knobs.data_loading import LoaderWorkers
from onefold.training.knobs.execution import CompileMode, OptimizerUpdate
from onefold.training.knobs.knob import Knob, KnobUnavailable, TrainingContext
from onefold.training.knobs.memory import Allocator, MemoryFormat
from onefold.training.knobs.memory_limit import MemoryLimit
from onefold.training.knobs.precision import MixedPrecision, TensorFloat32
from onefold.training.knobs.processor import CoreAffinity, CpuFrequency, ThreadCount
from onefold.vocabulary.records import Value

# In the order in which they are probed: those with the largest expected gain first.
KNOBS: tuple[Knob, ...] = (
    ThreadCount(),
    GpuCount(),
    LoaderWorkers(),
    MemoryFormat(),
    MixedPrecision(),
    TensorFloat32(),
    Allocator(),
    OptimizerUpdate(),
    CoreAffinity(),
    CpuFrequency(),
    MemoryLimit(),
    CompileMode(),
)
# Those that do not need a network, for plain functions.
PROCESS_KNOBS = tuple(
    knob for knob in KNOBS if isinstance(knob, (ThreadCount, Allocator, CoreAffinity, CpuFrequency, MemoryLimit))
)
PRECISION_KNOBS = frozenset(knob.name for knob in KNOBS if knob.reduces_precision)


@dataclass(frozen=True)
class AvailableKnobs:
    """The knobs that are available for a training, and why the others are not."""

    options: Mapping[str, Sequence[Value]]  # by name; the current value first
    unavailable: Mapping[str, str]  # the reason by name

    @property
    def defaults(self) -> dict[str, Value]:
        """Return the values that the knobs had before any tuning."""
        return {name: options[0] for name, options in self.options.items()}


def available_knobs(
    context: TrainingContext, *, reduced: bool = False, max_setup_s: float = 0.0, knobs: Sequence[Knob] = KNOBS
) -> AvailableKnobs:
    """Return the knobs that are available for a training.

    `reduced` allows reduced precision; knobs that take longer than `max_setup_s` to change are unavailable.
    """
    options: dict[str, Sequence[Value]] = {}
    unavailable: dict[str, str] = {}
    for knob in knobs:
        try:
            if knob.reduces_precision and not reduced:
                raise KnobUnavailable("reduced precision is not allowed")
            if knob.setup_s > max_setup_s:
                raise KnobUnavailable(f"changing it takes about {knob.setup_s:g} s, too long for the rest of training")
            options[knob.name] = tuple(knob.options(context))
        except KnobUnavailable as reason:
            unavailable[knob.name] = str(reason)
        except Exception as error:  # noqa: BLE001 - an unusual network or optimizer must not fail the trial
            unavailable[knob.name] = f"it does not support this training ({type(error).__name__}: {error})"
    return AvailableKnobs(options, unavailable)


def narrowed(available: AvailableKnobs, values: Mapping[str, Sequence[Value]]) -> AvailableKnobs:
    """Return the knobs with these values only; a knob that has none of its values here is unavailable.

    The first of its values that a knob can have is its default, unless the present value is among them.
    """
    options: dict[str, Sequence[Value]] = {}
    unavailable = dict.fromkeys(available.options, "it is not in the group 'system' of the space")
    unavailable |= {name: reason for name, reason in available.unavailable.items() if name in values}
    for name, wanted in values.items():
        known = available.options.get(name, ())
        possible = [value for value in wanted if _is_possible(value, known)]
        if possible:
            present = [known[0]] if known[0] in possible else []
            options[name] = tuple(dict.fromkeys([*present, *possible]))
            del unavailable[name]
        elif known:
            unavailable[name] = f"it cannot be {_listed(wanted)} here, only {_listed(known)}"
    return AvailableKnobs(options, unavailable)


def why_nothing_acts(available: AvailableKnobs, values: Mapping[str, Sequence[Value]]) -> str:
    """Return why none of these knobs can be set here; empty if one can, or can be once there is time to set it."""
    slow = {knob.name for knob in KNOBS if knob.setup_s}
    if not values or available.options or slow.intersection(values):
        return ""
    reasons = "; ".join(f"{name}: {available.unavailable.get(name, 'unknown here')}" for name in values)
    return f"no parameter of the group 'system' can be set here ({reasons}); take them out of the space"


def _is_possible(value: Value, known: Sequence[Value]) -> bool:
    """Return whether a knob can have a value: a known one, or any number between those that are known."""
    if value in known:
        return True
    numbers = [option for option in known if isinstance(option, int) and not isinstance(option, bool)]
    if not numbers or not isinstance(value, int) or isinstance(value, bool):
        return False
    return min(numbers) <= value <= max(numbers)


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(map(str, values))


@contextmanager
def applied(setting: Mapping[str, Value], context: TrainingContext, knobs: Sequence[Knob] = KNOBS) -> Iterator[None]:
    """Set several knobs for the block; restore all of them afterwards in reverse order."""
    with ExitStack() as stack:
        for knob in knobs:
            if knob.name in setting:
                stack.enter_context(knob.applied(setting[knob.name], context))
        yield
