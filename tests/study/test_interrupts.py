"""Signals between two steps."""

from __future__ import annotations

import os
import signal

import pytest

from onefold.study.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_asks_to_stop_waits_for_a_safe_moment(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_handlers_that_were_there_before_are_called_at_once() -> None:
    called: list[int] = []

    def handler(number: int, frame: object) -> None:
        called.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGHUP, handler)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert called == [signal.SIGHUP]
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_signal_waits_for_a_safe_moment_and_a_second_one_does_not() -> None:
    result = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        assert not interrupts.is_urgent
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.is_urgent
    assert signal.getsignal(signal.SIGINT) is result
