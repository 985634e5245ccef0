"""Compare a retrained model with the given one on test images: `python score.py MODEL GIVEN NAME=TEST…`.

Both are scored as they are served, by ONNX Runtime. Prints, for each test, how many images the given model classifies
correctly, and how many were won and lost. The results of the given model are cached beside the test.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onefold.serving import deploy

BATCH = 50


def is_correct(folder: Path, test: Path) -> NDArray[np.bool_]:
    """Return which test images the served model of a folder classifies correctly."""
    with np.load(test) as arrays:
        inputs, targets = arrays["inputs"], arrays["targets"]
    model = deploy.load(folder)
    parts = [model(inputs[start : start + BATCH]).argmax(1) for start in range(0, len(inputs), BATCH)]
    correct: NDArray[np.bool_] = np.concatenate(parts) == targets
    return correct


def cached_correctness(folder: Path, test: Path) -> NDArray[np.bool_]:
    """Return the same for the given model, from a file beside the test images if there is one."""
    file = test.with_name(f"given-{folder.name}.npy")
    if not file.is_file():
        unfinished = file.with_name(f"{folder.name}-{os.getpid()}.tmp.npy")
        np.save(unfinished, is_correct(folder, test))
        unfinished.replace(file)
    correct: NDArray[np.bool_] = np.load(file)
    return correct


def main() -> None:
    folder, given, *tests = sys.argv[1:]
    counts = {}
    for name, _, test in (test.partition("=") for test in tests):
        before = cached_correctness(Path(given), Path(test))
        after = is_correct(Path(folder), Path(test)) if folder != given else before
        counts[name] = [int(count) for count in (before.sum(), (after & ~before).sum(), (before & ~after).sum())]
    print(json.dumps({"tested": len(before), **counts}))


if __name__ == "__main__":
    main()
