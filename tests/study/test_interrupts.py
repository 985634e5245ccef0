"""Signals between two steps."""

from __future__ import annotations

import os
import signal

import pytest

from onefold.study.interrupts import Interrupts


def test_a_signal_waits_for_a_safe_moment_and_a_second_one_does_not() -> None:
    found = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        assert not interrupts.is_urgent
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.is_urgent
    assert signal.getsignal(signal.SIGINT) is found
