"""Models whose weights lie in a file beside them, as exporters write them: made one file, to be copied and weighed."""

from __future__ import annotations

import shutil
from pathlib import Path

from onefold.serving.export import samples_beside
from onefold.vocabulary.errors import ModelError


def with_embedded_weights(model: Path, folder: Path) -> Path:
    """The model itself or, where weights lie outside of it, a copy of the same name in `folder` that holds them."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    try:
        found = onnx.load(str(model), load_external_data=False)
    except Exception:  # noqa: BLE001 - whoever serves it says what is wrong with it
        return model
    if not any(uses_external_data(weights) for weights in found.graph.initializer):
        return model
    whole = folder / model.name
    try:
        load_external_data_for_model(found, str(model.parent))
        onnx.save(found, str(whole))
    except Exception as error:  # onnx and protobuf raise many kinds
        raise ModelError(
            f"{model} has weights in files beside it, and cannot be made one file with them: {error}; "
            "keep them together, and below 2 GB"
        ) from error
    if samples_beside(model).is_file():
        shutil.copyfile(samples_beside(model), samples_beside(whole))
    return whole
