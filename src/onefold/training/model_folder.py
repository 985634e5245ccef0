"""The folder of a trained model: its weights and its card.

FOLDER/weights.pt     the weights of the best epoch
FOLDER/model.json     the card: study, workload, trial, configuration and metrics
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onefold.vocabulary.errors import InputError

WEIGHTS = "weights.pt"
CARD = "model.json"


def card_of(folder: Path) -> dict[str, Any]:
    """What `model.json` says; raises InputError for what is no folder of a trained model."""
    missing = [name for name in (CARD, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} is no folder of a trained model: it has no {' and no '.join(missing)}; make one with "
            "onefold tune … --save FOLDER or onefold train … --save FOLDER"
        )
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{folder / CARD} cannot be read: {error}") from error
    if not isinstance(card, dict) or not isinstance(card.get("config"), dict):
        raise InputError(f"{folder / CARD} says nothing about the model's configuration")
    return card
