"""Texts of foreign exceptions, which may be huge, unprintable or no text at all, as text that can be stored."""

from __future__ import annotations

import traceback

MAX_REASON = 1_000  # characters of a reason
MAX_TRACEBACK = 20_000  # characters of a traceback in a store
MAX_LOG = 1_000_000  # characters of a traceback in a file


def message_of(error: BaseException) -> str:
    """Return the message of an exception, which may be empty; a text about it if the exception cannot be printed."""
    try:
        return _plain(str(error))
    except Exception as failure:  # noqa: BLE001 - the code of a stranger
        return f"<its message cannot be printed: __str__ raised {type(failure).__name__}>"


def headline(error: BaseException) -> str:
    """Return the first line of an exception's message, at most MAX_REASON characters, or else the name of its type."""
    lines = message_of(error).strip().splitlines()
    return cut(lines[0], MAX_REASON) if lines else type(error).__name__


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, at most MAX_LOG characters."""
    try:
        return cut(_plain("".join(traceback.format_exception(error))), MAX_LOG)
    except Exception:  # noqa: BLE001 - the code of a stranger
        frames = "".join(traceback.format_tb(error.__traceback__))
        return cut(_plain(f"{frames}{type(error).__name__}: {message_of(error)}\n"), MAX_LOG)


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and its end around a marker if it has more than `most` characters."""
    if len(text) <= most:
        return text
    marker = f" […{len(text) - most:,} characters cut…] "
    end = max(0, (most - len(marker)) // 2)
    return text[: most - len(marker) - end] + marker + text[len(text) - end :]


def _plain(text: str) -> str:
    """Return an exact `str` that can be encoded: without lone surrogates, and not of a subclass."""
    return str.encode(text, "utf-8", "backslashreplace").decode()
