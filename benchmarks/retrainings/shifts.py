"""Write the new data of a case and the images to test by: `python shifts.py FOLDER DOMAIN SEVERITY COUNT…`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from onefold import Data
from onefold.baselines.corruptions import corrupted
from onefold.datasets import write_data
from onefold.datasets.images import CIFAR10, load_images

TESTED = 1000  # images, the same that the study tested its model by


def main() -> None:
    folder, domain, severity, *counts = sys.argv[1:]
    clean = load_images(CIFAR10)
    _, validation, test = clean.splits
    new = validation[: max(map(int, counts))]  # the model was validated and its reference set drawn from the last ones
    chosen = np.concatenate([new, test[-TESTED:]])
    shifted = replace(
        clean,
        pixels=corrupted(clean.pixels[chosen], domain, int(severity)),
        classes=clean.classes[chosen],
        splits=(np.arange(len(new)), np.arange(5), np.arange(len(new), len(chosen))),
    ).data(clean.scale)
    place = Path(folder) / f"{domain}-{severity}"
    place.mkdir(parents=True, exist_ok=True)
    inputs, targets = shifted.test
    np.savez(place / "test.npz", inputs=inputs, targets=targets)
    for count in map(int, counts):
        write_data(place / f"new-{count}", Data(tuple(part[:count] for part in shifted.train)))


if __name__ == "__main__":
    main()
