"""Restore after each call what it may have changed in its process: the next call starts as in a new one.

Covered are the current folder, the environment, the file mode mask, the import path, the filters of warnings and the
global settings of libraries. Libraries are never imported for it: what is not loaded has not been changed, and a
library that the call itself has loaded gets its initial settings.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from onefold.engine.library_settings import SETTINGS, Setting


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore at the end of the block what it has changed."""
    with suppress(OSError):  # the current folder was removed
        folder = os.getcwd()  # noqa: PTH109 - a string
    environment, import_path = dict(os.environ), list(sys.path)
    mask = os.umask(0o077)
    os.umask(mask)
    known = [(setting, setting.read(library)) for setting in SETTINGS if (library := setting.loaded()) is not None]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        with suppress(OSError, NameError):
            os.chdir(folder)
        os.umask(mask)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        if sys.path != import_path:
            sys.path[:] = import_path
        _restore(dict(known))


def _restore(known: dict[Setting, Any]) -> None:
    for setting in SETTINGS:
        library = setting.loaded()
        if library is None:
            continue
        value = known[setting] if setting in known else setting.initial(library)
        if setting.read(library) != value:
            setting.write(library, value)
