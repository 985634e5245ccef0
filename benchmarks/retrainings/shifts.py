"""Write the new data of a case and its test images: `python shifts.py FOLDER DOMAIN SEVERITY COUNT…`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from onefold import Data
from onefold.baselines.corruptions import corrupted
from onefold.datasets import write_data
from onefold.datasets.images import CIFAR10, load_images

TEST_IMAGES = 1000  # those that the study tested its model with


def main() -> None:
    folder, domain, severity, *counts = sys.argv[1:]
    clean = load_images(CIFAR10)
    _, validation, test = clean.splits
    new = validation[: max(map(int, counts))]  # the last ones validated the model and are its reference set
    chosen = np.concatenate([new, test[-TEST_IMAGES:]])
    shifted = replace(
        clean,
        pixels=corrupted(clean.pixels[chosen], domain, int(severity)),
        classes=clean.classes[chosen],
        splits=(np.arange(len(new)), np.arange(5), np.arange(len(new), len(chosen))),
    ).data(clean.scale)
    target = Path(folder) / f"{domain}-{severity}"
    target.mkdir(parents=True, exist_ok=True)
    inputs, targets = shifted.test
    np.savez(target / "test.npz", inputs=inputs, targets=targets)
    for count in map(int, counts):
        write_data(target / f"new-{count}", Data(tuple(part[:count] for part in shifted.train)))


if __name__ == "__main__":
    main()
