"""The reference set of a model: a few validation samples, by which a later retraining sees what it must not forget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from onefold.training.splits import AnySplit

MAX_SAMPLES, MAX_BYTES = 500, 8_000_000


def write_samples(split: AnySplit, path: Path) -> int:
    """Write a stratified subset of a split into an .npz file, in the format of new data; return its number of samples.

    Of a stream it has the first samples. There is none if the samples are not single tensors, or if they are so large
    that fewer than two fit.
    """
    first = next(iter(split.batches(1)))
    if not isinstance(first, (tuple, list)) or not all(_is_plain(part) for part in first):
        return 0
    fitting = min(MAX_SAMPLES, MAX_BYTES // sum(part.nbytes for part in first))
    if fitting < 2:
        return 0
    parts = next(iter(split.share(0.0, at_least=fitting).batches(fitting)))
    if len(parts[-1]) < 2:
        return 0
    names = ["inputs"] if len(parts) == 2 else [f"inputs{index}" for index in range(len(parts) - 1)]
    arrays = {name: part.cpu().numpy() for name, part in zip([*names, "targets"], parts)}
    np.savez(path, **arrays)
    return len(parts[-1])


def _is_plain(part: object) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is not torch.bfloat16 and part.nbytes > 0
