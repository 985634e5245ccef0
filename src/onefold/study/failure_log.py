"""The file that has the whole traceback of a failed trial, where the store has only as much as a report shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onefold.training.trial_files import log_file
from onefold.vocabulary.error_text import MAX_REASON, MAX_TRACEBACK, cut
from onefold.vocabulary.log import log_of
from onefold.vocabulary.records import Failure, Rung

log = log_of()


def logged(failure: Failure, folder: Path, rung: Rung) -> Failure:
    """Append a failure to the log of its trial; return it as the store keeps it, with the name of the log."""
    stored = replace(failure, reason=cut(failure.reason, MAX_REASON), traceback=cut(failure.traceback, MAX_TRACEBACK))
    if not failure.traceback:
        return stored
    file = log_file(folder, rung.trial)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"decision {rung.decision}, rung {rung.rung}: {failure.reason}\n{failure.traceback}\n")
    except OSError as error:  # the failure itself is in the store
        log.warning("the log %s cannot be written: %s", file, error)
        return stored
    return replace(stored, log=str(file.relative_to(folder)))
