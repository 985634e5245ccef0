"""The live panel and the plain lines of a running study."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from onefold.cli.display import LiveDisplay, PlainDisplay, rung_progress, sentence
from onefold.study.events import (
    EpochFinished,
    RungStarted,
    RunningRung,
    StudyEvent,
    StudyProgress,
    StudyStarted,
    Tick,
    TrialFailed,
    TrialPromoted,
    TrialRetried,
)
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config

ACCURACY = Objective(maximize="accuracy")


def console() -> Console:
    return Console(record=True, file=io.StringIO(), width=160, markup=False, highlight=False)


def idle() -> StudyProgress:
    return StudyProgress("s")


def tick(**progress: Any) -> StudyEvent:
    return Tick(lambda: StudyProgress("s", **progress))


def panel(*events: StudyEvent) -> str:
    """Return the text of the panel after these events."""
    screen = console()
    display = LiveDisplay(screen, ACCURACY)
    for event in events:
        display(event)
    screen.print(display.panel())
    return screen.export_text()


def test_the_panel_reports_the_start_of_workers_before_the_first_trial() -> None:
    assert "starting the workers" in panel()
    assert "starting the workers" in panel(tick())


def test_the_panel_shows_progress_and_running_rungs() -> None:
    running = (RunningRung(7, 1, 2, 3, 9, 2), RunningRung(8, 0, 1, 0, 1, 1), RunningRung(9, 0, 1, 1, 1, 1))
    event = tick(
        elapsed_s=40.0, left_s=200.0, trials_started=9, trials_planned=27, trials_failed=2, running=running,
        best_trial=4, best_config=Config(lr=0.01, width=16), best_metrics={"accuracy": 0.97312, "loss": 0.1},
        energy_j=1234.0, energy_source="modelled",
    )  # fmt: skip
    text = panel(event)
    for expected in ("9/27 trials", "2 failed", "elapsed, about 3 min 20 s left", "≈ 1.23 kJ (modelled)"):
        assert expected in text
    assert "best accuracy 0.9731  trial 4  lr=0.01 width=16" in text
    seventh, eighth, ninth = text.splitlines()[-3:]
    for expected in ("trial 7", "rung 1 (level 2)", "epoch 4/9", "2 threads"):
        assert expected in seventh
    for expected in ("trial 8", "rung 0 (level 1)", "epoch 1/1", "1 thread"):
        assert expected in eighth
    assert "epoch 1/1" in ninth


def test_the_panel_shows_the_latest_event() -> None:
    text = panel(
        tick(trials_started=1, trials_planned=3),
        tick(trials_started=2, trials_planned=3),
    )
    assert "2/3 trials" in text
    assert "failed" not in text
    assert "no result yet" in text
    assert "left" not in text


def test_the_panel_shows_seconds_if_time_is_granted() -> None:
    rung = RunningRung(0, 1, 4, 12, 1000, 1, time_s=2.5, time_granted_s=20.0)
    text = panel(tick(trials_started=1, trials_planned=3, running=(rung,)))
    assert "2.50 s of 20.0 s" in text
    assert "epoch" not in text
    assert rung_progress(RunningRung(0, 1, 4, 12, 1000, 1)) == "epoch 13/1000"


def test_important_events_are_printed_above_the_panel() -> None:
    text = panel(
        StudyStarted(idle, "s", "/home/s"),
        RungStarted(idle, 0, 0, 1, Config(lr=0.1), 1, 1.0, None),
        TrialFailed(idle, 0, "raised", "it broke"),
    )
    assert "study s: highest accuracy; saved in /home/s" in text
    assert "trial 0 FAILED (raised): it broke" in text
    assert "starts" not in text


def test_the_panel_is_drawn_while_the_display_is_open() -> None:
    screen = Console(record=True, file=io.StringIO(), width=160, force_terminal=True, highlight=False)
    with LiveDisplay(screen, ACCURACY) as display:
        display(tick(trials_started=2, trials_planned=3))
    assert "2/3 trials" in screen.export_text()


def test_a_promotion_is_described_with_its_grant() -> None:
    whole = TrialPromoted(idle, 3, 1, 2, Config(), 1000, 1.0, None)
    assert sentence(whole, ACCURACY) == "trial 3 promoted to rung 1: 1,000 epochs"
    timed = replace(whole, time_s=10.0)
    assert sentence(timed, ACCURACY) == "trial 3 promoted to rung 1: 10.0 s of training"
    part = replace(whole, epochs=1, data=0.5)
    assert sentence(part, ACCURACY) == "trial 3 promoted to rung 1: 1 epoch on 50 % of the data"


def test_plain_lines_skip_unimportant_events() -> None:
    screen = console()
    with PlainDisplay(screen, ACCURACY) as display:
        display(tick())
        display(EpochFinished(idle, 0, 1, {}))
        display(TrialRetried(idle, 0, "its worker was killed", 2))
    assert screen.export_text() == "trial 0 is retried (attempt 2): its worker was killed\n"
