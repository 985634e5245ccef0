"""Small files of others: too large, too deep, or no files at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onefold.vocabulary.documents import parse_toml, read_document, read_json


def test_a_document_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ä": [1]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"ä": [1]}


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_document(tmp_path / "pipe")


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="not a regular file"):
        read_document("/dev/zero")


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_document(tmp_path / "a", 5) == "12345"
    os.truncate(tmp_path / "a", 1 << 40)
    with pytest.raises(ValueError, match="too large"):
        read_document(tmp_path / "a", 5)


def test_nesting_beyond_the_stack_is_an_error_like_others(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_toml("a = " + "[" * 100_000)
