"""What the card of a compressed model says of its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onefold.compression.encoding import ENCODINGS, pack
from onefold.compression.onnx_module import BATCH_SIZE
from onefold.compression.onnx_weights import has_dynamic_ranges, weight_sparsity
from onefold.vocabulary.records import to_json
from onefold.vocabulary.variants import LayerPrecision, Recipe


def file_properties(
    model: Path, recipe: Recipe, layers: Sequence[LayerPrecision] = (), batch_size: int = BATCH_SIZE
) -> dict[str, Any]:
    """Return how the model in an ONNX file is compressed, its layers too, and the size of this file, also packed.

    `batch_size` is that with which its metrics were computed.
    """
    content = model.read_bytes()
    packed = {name: len(pack(content, name)) for name in ENCODINGS}
    encoding = min(packed, key=lambda name: packed[name])
    return {
        "recipe": str(recipe),
        "settings": recipe.settings,
        "file_bytes": len(content),
        "packed_bytes": packed[encoding],
        "encoding": encoding,
        "zeros": weight_sparsity(model),
        "metrics_batch_size": batch_size,
        "ranges_by_batch": has_dynamic_ranges(model),
        **({"layers": [to_json(layer) for layer in layers]} if layers else {}),
    }
