"""Files of others are checked by type: any value in any place is read, or refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.store.home import Home
from onefold.training.api import KIND, VERSION, export_knobs, import_knobs
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import JobProfile, KnobMemory
from onefold.vocabulary.records import Config, Failure, FailureKind, Rung, to_json
from onefold.vocabulary.typed_json import checked_from_json

MEMORY = KnobMemory(
    "a machine", "time", False, JobProfile({"a": 0.5, "b": 1.0}, ("operators",)), Config(threads=2), 2.0, 1.0
)
WRONG = (None, True, -1, 0.5, 10**400, float("nan"), "text", [], [[]], {}, {"a": {}})


def mutations(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the document with each value in turn replaced by each wrong one, or left out."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            yield (*path, key)
            yield from places(inner, (*path, key))

    for *path, last in places(document, ()):
        for wrong in (*WRONG, ...):
            changed = copy.deepcopy(document)
            owner = changed
            for key in path:
                owner = owner[key]
            if wrong is ...:
                del owner[last]
            else:
                owner[last] = wrong
            yield f"{path} {last} {wrong}", changed


def test_any_value_in_an_export_of_knobs_is_read_or_refused(tmp_path: Path) -> None:
    content = {"kind": KIND, "version": VERSION, "remembered": [to_json(MEMORY)]}
    file, home = tmp_path / "knobs.json", Home(tmp_path / "home")
    refused = []
    for _, changed in mutations(content):
        file.write_text(json.dumps(changed))
        try:
            import_knobs(file, home)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 80
    assert all(str(file) in sentence for sentence in refused)
    export_knobs(tmp_path / "again.json", home)  # whatever was accepted can be read


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"found": "fast"}, r"remembered\[0\].found must be a number, but is 'fast'"),
        ({"machine": 7}, r"remembered\[0\].machine must be a text, but is 7"),
        ({"profile": []}, r"remembered\[0\].profile must be an object, but is a list"),
        ({"knobs": {"threads": {}}}, r"remembered\[0\].knobs.threads must be .*, but is an object"),
    ],
)
def test_the_sentence_names_the_place(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    file = tmp_path / "knobs.json"
    file.write_text(json.dumps({"kind": KIND, "version": VERSION, "remembered": [{**to_json(MEMORY), **change}]}))
    with pytest.raises(InputError, match=sentence):
        import_knobs(file, tmp_path / "home")


def test_what_to_json_wrote_is_accepted() -> None:
    from onefold.vocabulary.records import Grant

    rung = Rung(0, 1, 0, 0, Grant(1, 2, 0.5), metrics={"loss": 1.0}, failure=Failure(FailureKind.HUNG, "silent"))
    assert checked_from_json(Rung, to_json(rung)) == rung
    assert checked_from_json(KnobMemory, to_json(MEMORY)) == MEMORY
