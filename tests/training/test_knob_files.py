"""What is remembered of knobs, handed on in a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from onefold.study import Home
from onefold.testing.stores import a_memory
from onefold.training.api import export_knobs, import_knobs, known_knobs
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import KnobWish


def test_what_is_exported_comes_back_equal(tmp_path: Path) -> None:
    with closing(Home(tmp_path / "one").store()) as store:
        store.save_knob_memory(a_memory())
    assert export_knobs(tmp_path / "known.json", tmp_path / "one") == 1
    assert import_knobs(tmp_path / "known.json", tmp_path / "other") == 1
    assert known_knobs(tmp_path / "other") == [a_memory()]


@pytest.mark.parametrize("content", ["[1, 2]", "{}", "no JSON", '{"kind": "onefold knobs", "version": 9}'])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(InputError, match="is no file that"):
        import_knobs(tmp_path / "file.json", tmp_path)


def test_a_place_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        import_knobs(tmp_path / "nowhere.json", tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        export_knobs(tmp_path / "nowhere" / "known.json", tmp_path)


@pytest.mark.parametrize(
    ("wish", "says"), [({"mode": "of"}, "'off'"), ({"aim": "tim"}, "'time'"), ({"probing": "gird"}, "'grid'")]
)
def test_a_wish_that_is_not_known_is_answered_with_the_nearest(wish: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        KnobWish(**wish).check()  # type: ignore[arg-type]
