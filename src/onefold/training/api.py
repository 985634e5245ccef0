"""What is remembered of knobs, to look at, to hand on and to take over."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from onefold.store.home import Home
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import Remembered
from onefold.vocabulary.records import from_json, to_json

KIND, VERSION = "onefold knobs", 1


def known_knobs(home: str | Path | Home | None = None) -> list[Remembered]:
    """All that is remembered of knobs."""
    with closing(_home(home).store()) as store:
        return store.knob_memories()


def export_knobs(path: str | Path, home: str | Path | Home | None = None) -> int:
    """Writes all that is remembered to a file, and tells how many jobs it is of. Only counters are in it."""
    known = known_knobs(home)
    content = {"kind": KIND, "version": VERSION, "remembered": to_json(known)}
    try:
        Path(path).write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return len(known)


def import_knobs(path: str | Path, home: str | Path | Home | None = None) -> int:
    """Remembers what such a file holds, and tells how many jobs it is of."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["kind"] != KIND or content["version"] > VERSION:
            raise ValueError(f"it is a {content['kind']} of version {content['version']}")
        known = [from_json(Remembered, one) for one in content["remembered"]]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file that `onefold knobs export` wrote ({error})") from error
    with closing(_home(home).store()) as store, store.transaction():
        for one in known:
            store.save_knob_memory(one)
    return len(known)


def _home(given: str | Path | Home | None) -> Home:
    return given if isinstance(given, Home) else Home(given)
