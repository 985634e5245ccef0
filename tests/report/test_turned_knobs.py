"""What a report says about knobs, in every form. The windows are made up: test data, no more."""

from __future__ import annotations

import json
from dataclasses import replace

from page_checks import checked
from simulated_study import simulate

from onefold.report.study.knobs import knobs_table, turned_knobs
from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.summary import Summary
from onefold.report.study.text import as_text
from onefold.vocabulary.knobs import Phase, Steered, StepWindow
from onefold.vocabulary.records import Config

FOUND, BEST = Config(threads=2, update="loop"), Config(threads=1, update="loop")
EVIL = "<script>alert('x')</script>&\"quoted\""


def summary() -> Summary:
    plain = simulate().summary
    assert plain.best is not None
    best = plain.best.number
    windows = (
        StepWindow(Phase.FOUND, FOUND, 5, 0.012, 0.1, "modelled"),
        StepWindow(Phase.PROBED, BEST, 5, 0.0045, None),
        StepWindow(Phase.SETTLED, BEST, 40, 0.004, None),
    )
    first = Steered(best, 0, 1, windows, notes=(f"probed 4 windows {EVIL}",), missing={"compile": "takes too long"})
    later = Steered(best, 0, 2, (StepWindow(Phase.SETTLED, BEST, 80, 0.003, None),))
    return replace(plain, steered=(first, later))


def test_nothing_is_said_where_no_knob_was_turned() -> None:
    plain = simulate().summary
    assert turned_knobs(plain) is None
    assert "Knobs" not in as_text(plain)
    assert "knobs" not in as_json(plain)
    assert 'id="knobs"' not in as_html(plain)


def test_a_row_says_what_a_trial_was_left_with_and_what_that_gained() -> None:
    (row,) = knobs_table(summary()).rows
    assert row.texts[1:] == ("probed", "threads=1", "12 ms, ≈ 100 mJ", "4 ms", "3.00×", "1")


def test_the_text_and_the_json_have_it() -> None:
    assert "threads=1" in as_text(summary())
    told = json.loads(json.dumps(as_json(summary()), allow_nan=False))["knobs"]
    assert [len(each["windows"]) for each in told] == [3, 1]
    assert told[0]["windows"][1]["phase"] == "probed"


def test_the_page_shows_windows_decisions_and_what_is_missing() -> None:
    page = as_html(summary())
    checked(page)
    assert "Knobs" in page
    assert "as the knobs stood" in page
    assert "takes too long" in page
    assert EVIL not in page


def test_a_trial_that_only_has_notes_is_told_without_a_plot() -> None:
    told = replace(summary(), steered=(Steered(0, 0, 1, notes=("begun again",)),))
    shown = turned_knobs(told)
    assert shown is not None
    assert shown.plot is None
    checked(as_html(told))
