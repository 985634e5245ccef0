"""ONNX models with external data: weights in files beside the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from onefold.serving.export import samples_beside
from onefold.serving.signature import MAX_ONNX_BYTES, check_file
from onefold.vocabulary.errors import ModelError


def with_embedded_weights(model: Path, folder: Path) -> Path:
    """Return the model, or a copy in `folder` with its weights embedded if it has external data.

    The samples beside the model are copied too. Raises ModelError if the external data cannot be loaded.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

    try:
        check_file(model)
        loaded = onnx.load(str(model), load_external_data=False)
    except Exception:  # noqa: BLE001 - serving the model reports what is wrong with it
        return model
    external = [weights for weights in loaded.graph.initializer if uses_external_data(weights)]
    if not external:
        return model
    embedded = folder / model.name
    try:
        if sum(_bytes_to_read(ExternalDataInfo(weights), model.parent) for weights in external) > MAX_ONNX_BYTES:
            raise ValueError("it is larger than an ONNX file may be")
        load_external_data_for_model(loaded, str(model.parent))
        onnx.save(loaded, str(embedded))
    except Exception as error:  # onnx and protobuf raise many types
        raise ModelError(
            f"the external data of {model} cannot be embedded: {error}; keep its files beside it, and below 2 GB"
        ) from error
    if samples_beside(model).is_file():
        shutil.copyfile(samples_beside(model), samples_beside(embedded))
    return embedded


def _bytes_to_read(info: Any, folder: Path) -> int:
    """Return how much is read for a tensor: the rest of its file if it has no length."""
    return int(info.length) if info.length else (folder / info.location).stat().st_size - int(info.offset or 0)
