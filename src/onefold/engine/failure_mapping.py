"""Map the exception of a call to a Failure record."""

from __future__ import annotations

import errno

from onefold.vocabulary.error_text import headline, message_of, traceback_of, type_name
from onefold.vocabulary.errors import NotANumber
from onefold.vocabulary.records import Failure, FailureKind

# How torch, numpy, CUDA and the C library report that memory has run out, in lower case.
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception stands for, with its traceback."""
    reason, trace = headline(error), traceback_of(error)
    if isinstance(error, NotANumber):
        return Failure(FailureKind.NOT_A_NUMBER, reason)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(FailureKind.NO_SPACE, reason, trace)
    if isinstance(error, MemoryError) or any(phrase in message_of(error).lower() for phrase in OUT_OF_MEMORY):
        return Failure(FailureKind.OUT_OF_MEMORY, f"out of memory: {reason}", trace)
    return Failure(FailureKind.RAISED, f"{type_name(error)}: {reason}", trace)
