"""The options and records of knobs."""

from __future__ import annotations

import pytest

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import (
    KnobOptions,
    KnobRecord,
    Phase,
    StepWindow,
    changed_knobs,
    knob_gain,
    knobs_in_use,
    why_no_gain,
)
from onefold.vocabulary.records import Config, from_json, to_json


@pytest.mark.parametrize(
    ("options", "suggestion"),
    [({"mode": "of"}, "'off'"), ({"optimize_for": "tim"}, "'time'"), ({"probing": "gird"}, "'grid'")],
)
def test_an_unknown_option_gets_a_suggestion(options: dict[str, str], suggestion: str) -> None:
    with pytest.raises(InputError, match=suggestion):
        KnobOptions(**options).check()  # type: ignore[arg-type]


def test_options_survive_json() -> None:
    options = KnobOptions("probe", "energy", "grid", "DBSCAN", reduced=True)
    assert from_json(KnobOptions, to_json(options)) == options


def compared(knobs: Config, *steps_s: float) -> list[StepWindow]:
    return [StepWindow(Phase.COMPARED, knobs, 3, step_s, None) for step_s in steps_s]


def test_the_gain_is_that_of_the_latest_comparison_with_the_knobs_in_use() -> None:
    default, best, late = Config(threads=2), Config(threads=1), Config(threads=1, compile="compiled")
    found = StepWindow(Phase.FOUND, default, 3, 36.6, None)
    settled = StepWindow(Phase.SETTLED, best, 3, 0.1, None)
    first = KnobRecord(0, 0, 1, (found, *compared(default, 5.0), *compared(best, 2.0), settled), in_use=best)
    again = KnobRecord(
        0, 0, 2, (*compared(default, 4.0, 4.2, 9.0), *compared(best, 1.0, 1.5, 9.9), settled), in_use=best
    )
    gain = knob_gain([first, again])
    assert gain is not None
    assert [window.step_s for window in gain] == [4.0, 1.0]
    assert changed_knobs(default, knobs_in_use([first])) == best
    compile_known = KnobRecord(0, 0, 3, defaults={"threads": 2, "compile": "eager"}, in_use=best)
    assert knob_gain([first, compile_known]) is not None, "compared before the knob was available"
    assert knob_gain([first, KnobRecord(0, 0, 3, in_use=late)]) is None, "not compared"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (KnobRecord(0, 0, 1, in_use=Config(threads=2)), "no other setting is faster"),
        (KnobRecord(0, 0, 1, in_use=Config(threads=1)), "not compared"),
        (KnobRecord(0, 0, 1, (StepWindow(Phase.PROBED, Config(threads=1), 3, 1.0, None),)), "to finish probing"),
        (KnobRecord(0, 0, 1), "no similar job"),
        (KnobRecord(0, 0, 1, untunable="steps cannot be timed"), "steps cannot be timed"),
    ],
)
def test_knobs_without_a_known_gain_have_a_reason(record: KnobRecord, reason: str) -> None:
    found = KnobRecord(0, 0, 1, (StepWindow(Phase.FOUND, Config(threads=2), 3, 1.0, None),))
    assert knob_gain([found, record]) is None
    assert reason in why_no_gain([found, record])
