"""The model card and the weights of a trained model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import InputError

WEIGHTS = "weights.safetensors"
LEGACY_WEIGHTS = "weights.pt"  # of version 0.1, and of state dicts that safetensors cannot store
CARD = "model.json"
PREVIOUS = "previous"  # folder of the model that a retraining replaced
PROFILE = "retraining-profile.json"  # what plans of a retraining need and gain
REFERENCE = "reference.npz"  # a few samples of the validation data
MAX_CARD_BYTES = 16_000_000


def find_weights(folder: Path) -> Path:
    """Return the file of weights in a folder, whether it exists or not."""
    legacy = folder / LEGACY_WEIGHTS
    return legacy if legacy.is_file() and not (folder / WEIGHTS).is_file() else folder / WEIGHTS


def has_weights(folder: Path) -> bool:
    """Return whether a folder has the card and the weights of a trained model."""
    return (folder / CARD).is_file() and find_weights(folder).is_file()


def read_trained_card(folder: Path) -> dict[str, Any]:
    """Return the content of `model.json`; raises InputError if `folder` has no card or no weights."""
    _check_files(folder, (folder / CARD, find_weights(folder)))
    return read_card(folder)


def read_card(folder: Path) -> dict[str, Any]:
    """Return the content of `model.json`; raises InputError if `folder` has no card.

    The folder of a compressed fork has a card and a model file, but no weights.
    """
    path = folder / CARD
    _check_files(folder, (path,))
    try:
        card = read_json(path, MAX_CARD_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a model card: {error}") from error
    if not isinstance(card, dict) or not isinstance(card.get("config"), dict):
        raise InputError(f"{path} has no configuration of the model")
    return card


def _check_files(folder: Path, files: Iterable[Path]) -> None:
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise InputError(
            f"{folder} is not a folder of a trained model: it has no {' and no '.join(missing)}; "
            "save the result of a study there first"
        )
