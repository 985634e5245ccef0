"""Checksums of the columns that decisions rest on, which SQLite itself does not protect."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from onefold.vocabulary.errors import StoreError

STUDY = ("name", "spec")
TRIAL = ("study", "number", "config", "refusals", "redraws")
RUNG = (
    "study", "decision", "trial", "rung", "bracket", "state", "threads", "attempts", "grant", "metrics", "measurement",
    "failure",
)  # fmt: skip


def with_checksum(row: Mapping[str, Any], columns: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the row with the checksum of these columns."""
    return {**row, "checksum": _checksum(row, columns)}


def check(record: str, row: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    """Raise StoreError if these columns are not those that were stored."""
    if row["checksum"] != _checksum(row, columns):
        raise StoreError(
            f"{record} was changed outside of Onefold, or the disk is damaged: its checksum does not match; "
            "restore the store from a backup, or start a new study"
        )


def _checksum(row: Mapping[str, Any], columns: tuple[str, ...]) -> int:
    return zlib.crc32("\0".join(str(row[name]) for name in columns).encode())
