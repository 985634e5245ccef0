"""Functions of the user that raise."""

from __future__ import annotations

import pytest

from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.retraining import PhaseStarted


def test_an_error_is_logged_once_and_the_function_is_called_on(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []

    def on_event(event: object) -> None:
        heard.append(event)
        raise ValueError("broken")

    notify = GuardedCallback(on_event)
    for event in (PhaseStarted("profiling the network"), "compiling"):
        notify(event)
    assert len(heard) == 2
    (record,) = caplog.records
    assert "on_event raised ValueError at 'PhaseStarted'" in record.getMessage()


@pytest.mark.parametrize("request_to_stop", [KeyboardInterrupt, SystemExit, BrokenPipeError])
def test_requests_to_stop_pass(request_to_stop: type[BaseException]) -> None:
    def on_event(event: str) -> None:
        raise request_to_stop

    with pytest.raises(request_to_stop):
        GuardedCallback(on_event)("compiling")


def test_without_a_function_nothing_happens() -> None:
    GuardedCallback[str](None)("compiling")
