"""The options and records of knobs."""

from __future__ import annotations

import pytest

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, Phase, StepWindow, changed_knobs, knob_gain
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


def test_the_gain_compares_the_fastest_default_with_the_median_final_window() -> None:
    default, best = Config(threads=2), Config(threads=1)
    windows = [
        StepWindow(Phase.FOUND, default, 3, 5.0, None),
        StepWindow(Phase.PROBED, best, 3, 1.5, None),
        StepWindow(Phase.PROBED, default, 3, 4.0, None),
        *(StepWindow(Phase.SETTLED, best, 3, step_s, None) for step_s in (1.0, 9.0, 2.0)),
    ]
    gain = knob_gain([KnobRecord(0, 0, 1, tuple(windows[:3])), KnobRecord(0, 0, 2, tuple(windows[3:]))])
    assert gain is not None
    before, after = gain
    assert (before.step_s, after.step_s) == (4.0, 2.0)
    assert changed_knobs(before, after) == best
    assert knob_gain([KnobRecord(0, 0, 1, tuple(windows[:1]))]) is None
