"""The section about knobs in every form of a report, with invented windows."""

from __future__ import annotations

import json
from dataclasses import replace

from page_checks import checked
from simulated_study import simulate

from onefold.report.study.knobs import knob_section, knobs_table
from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.summary import Summary
from onefold.report.study.text import as_text
from onefold.vocabulary.knobs import KnobRecord, Phase, StepWindow
from onefold.vocabulary.quantities import MISSING
from onefold.vocabulary.records import Config

DEFAULT, BEST = Config(threads=2, update="loop"), Config(threads=1, update="loop")
EVIL = "<script>alert('x')</script>&\"quoted\""


def summary() -> Summary:
    plain = simulate().summary
    assert plain.best is not None
    best = plain.best.number
    windows = (
        StepWindow(Phase.FOUND, DEFAULT, 5, 0.012, 0.1, "modelled"),
        StepWindow(Phase.PROBED, BEST, 5, 0.0045, None),
        StepWindow(Phase.COMPARED, DEFAULT, 5, 0.009, 0.1, "modelled"),
        StepWindow(Phase.COMPARED, BEST, 5, 0.0045, None),
        StepWindow(Phase.SETTLED, BEST, 40, 0.004, None),
    )
    notes, missing = (f"probed 4 windows {EVIL}",), {"compile": "takes too long"}
    first = KnobRecord(best, 0, 1, windows, notes=notes, missing=missing, in_use=BEST)
    later = KnobRecord(best, 0, 2, (StepWindow(Phase.SETTLED, BEST, 80, 0.003, None),))
    return replace(plain, knob_records=(first, later))


def test_a_study_without_knob_tuning_has_no_section() -> None:
    plain = simulate().summary
    assert knob_section(plain) is None
    assert "Knobs" not in as_text(plain)
    assert "knobs" not in as_json(plain)
    assert 'id="knobs"' not in as_html(plain)


def test_a_row_has_the_final_knobs_and_the_gain() -> None:
    (row,) = knobs_table(summary()).rows
    assert row.texts[1:] == ("probing", "threads=1", "9 ms, ≈ 100 mJ", "4.5 ms", "2.00×", "1")


def test_knobs_that_were_given_up_have_no_gain() -> None:
    known = summary()
    given_up = KnobRecord(known.knob_records[0].trial, 0, 3, in_use=DEFAULT)
    (row,) = knobs_table(replace(known, knob_records=(*known.knob_records, given_up))).rows
    assert row.texts[2:6] == ("defaults", MISSING, MISSING, MISSING)


def test_text_and_json_contain_the_knobs() -> None:
    assert "threads=1" in as_text(summary())
    records = json.loads(json.dumps(as_json(summary()), allow_nan=False))["knobs"]
    assert [len(record["windows"]) for record in records] == [5, 1]
    assert records[0]["windows"][1]["phase"] == "probed"


def test_the_page_shows_windows_decisions_and_unavailable_knobs() -> None:
    page = as_html(summary())
    checked(page)
    assert "Knobs" in page
    assert "default knobs" in page
    assert "takes too long" in page
    assert EVIL not in page


def test_a_trial_without_windows_has_no_plot() -> None:
    records = replace(summary(), knob_records=(KnobRecord(0, 0, 1, notes=("repeated",)),))
    shown = knob_section(records)
    assert shown is not None
    assert shown.plot is None
    checked(as_html(records))
