"""Hypothesis strategies for search spaces: several groups, all kinds of parameters, conditions across groups."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from onefold.vocabulary.records import Value
from onefold.vocabulary.space import Choice, Float, Int, Parameter, Space

GROUPS = ("model", "training", "data")
OPTIONS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.floats(-5, 5), st.sampled_from(("relu", "tanh", "sgd", ""))
)


@st.composite
def parameters(draw: st.DrawFn, when: dict[str, Any] | None = None) -> Parameter:
    """Draw a Float, an Int or a Choice; some have a single value, some have a default."""
    kind = draw(st.sampled_from(("float", "int", "choice", "ordinal")))
    if kind == "choice":
        options = draw(st.lists(OPTIONS, min_size=1, max_size=4, unique_by=lambda option: (type(option), option)))
        return Choice(*options, default=draw(st.none() | st.sampled_from(options)), when=when)
    if kind == "ordinal":
        return Choice(*sorted(draw(st.sets(st.integers(1, 256), min_size=1, max_size=5))), when=when)
    log = draw(st.booleans())
    if kind == "int":
        low = draw(st.integers(1 if log else -20, 30))
        high = low + draw(st.integers(0, 40))
        return Int(low, high, log, draw(st.none() | st.integers(low, high)), when or {})
    start = draw(st.floats(1e-6, 10) if log else st.floats(-10, 10))
    end = start + draw(st.just(0.0) | st.floats(1e-3, 100))
    return Float(start, end, log, draw(st.none() | st.floats(start, end)), when or {})


@st.composite
def spaces(draw: st.DrawFn, max_parameters: int = 6, min_groups: int = 1) -> Space:
    """Draw a space of 1 to `max_parameters` parameters, about half of which depend on others."""
    made: dict[str, Parameter] = {}
    for index in range(draw(st.integers(1, max_parameters))):
        parents = draw(
            st.sets(st.sampled_from(sorted(made)), max_size=draw(st.sampled_from((0, 2)))) if made else st.just(set())
        )
        when = {parent: draw(_condition(made[parent])) for parent in sorted(parents)}
        made[f"p{index}"] = draw(parameters(when))
    names = GROUPS[: draw(st.integers(min_groups, len(GROUPS)))]
    groups: dict[str, dict[str, Parameter]] = {group: {} for group in names}
    for name in draw(st.permutations(sorted(made))):
        groups[draw(st.sampled_from(sorted(groups)))][name] = made[name]
    return Space(**groups)


def _condition(parent: Parameter) -> st.SearchStrategy[Value | list[Value]]:
    """Draw a value of the parent, or a list of values."""
    if isinstance(parent, Choice):
        values: st.SearchStrategy[Value] = st.sampled_from(parent.options)
    elif isinstance(parent, Int):
        values = st.integers(parent.low, parent.high)
    else:
        values = st.sampled_from((parent.low, parent.at(0.5)))
    return values | st.lists(values, min_size=1, max_size=3)
