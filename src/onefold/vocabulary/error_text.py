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
    except BaseException as failure:  # noqa: BLE001 - the code of a stranger, also one that ends the process
        return f"<its message cannot be printed: __str__ raised {type_name(failure)}>"


def type_name(error: BaseException) -> str:
    """Return the name of an exception's class, whatever its metaclass makes of `__name__`."""
    return _plain(type.__dict__["__name__"].__get__(type(error)))


def headline(error: BaseException) -> str:
    """Return the first line of an exception's message, at most MAX_REASON characters, or else the name of its type."""
    lines = message_of(error).strip().splitlines()
    return cut(lines[0], MAX_REASON) if lines else type_name(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, at most MAX_LOG characters."""
    try:
        return cut(_plain("".join(traceback.format_exception(error))), MAX_LOG)
    except BaseException:  # noqa: BLE001 - the code of a stranger, or a file name that cannot be encoded
        walk = traceback.walk_tb(error.__traceback__)
        codes = [(frame.f_code, line) for frame, line in walk]
        frames = [f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in codes]
        return cut(_plain(f"{''.join(frames)}{type_name(error)}: {message_of(error)}\n"), MAX_LOG)


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and its end around a marker if it has more than `most` characters."""
    if len(text) <= most:
        return text
    marker = f" […{len(text) - most:,} characters cut…] "
    end = max(0, (most - len(marker)) // 2)
    return text[: most - len(marker) - end] + marker + text[len(text) - end :]


def is_encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it has no lone surrogates."""
    return _plain(text) == text


def _plain(text: str) -> str:
    """Return an exact `str` that can be encoded: without lone surrogates, and not of a subclass."""
    return str.encode(text, "utf-8", "backslashreplace").decode()
