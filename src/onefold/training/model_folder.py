"""The folder of a trained model.

FOLDER/weights.pt     the weights of the best epoch
FOLDER/model.json     the model card: study, workload, trial, configuration and metrics
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onefold.vocabulary.errors import InputError

WEIGHTS = "weights.pt"
CARD = "model.json"


def read_card(folder: Path) -> dict[str, Any]:
    """Return the content of `model.json`; raises InputError if `folder` is not that of a trained model."""
    missing = [name for name in (CARD, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} is not a folder of a trained model: it has no {' and no '.join(missing)}; "
            "save the result of a study there first"
        )
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{folder / CARD} is not valid JSON: {error}") from error
    if not isinstance(card, dict) or not isinstance(card.get("config"), dict):
        raise InputError(f"{folder / CARD} has no configuration of the model")
    return card
