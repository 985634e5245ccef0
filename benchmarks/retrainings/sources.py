"""Models to retrain, as `onefold tune --save` writes them: `python sources.py MODEL FOLDER`.

Each is trained on clean CIFAR-10 by a study of one trial, on a GPU if there is one, else with a thread on each core
that it may use. The study hands over weights, reference set, model.onnx and serving settings; one that was interrupted
continues. A folder of models has the file of their workloads with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

WORKLOADS = {"mobilenet": "Mobilenet", "resnet50": "Resnet50", "vit": "VitTiny", "quick": "QuickMobilenet"}
EPOCHS = {"mobilenet": 8, "resnet50": 6, "vit": 8, "quick": 2}


def train(name: str, folder: Path, epochs: int) -> Path:
    """Train a model, unless it is there, and return its folder; interrupted studies continue."""
    target = folder / name
    if (target / "manifest.json").is_file():
        return target
    import torch

    from onefold import Budget, ParallelismOptions, SearchOptions, ServingOptions, Study
    from onefold.vocabulary.errors import OnefoldError

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "networks.py"
    shutil.copyfile(Path(__file__).with_name(file.name), file)
    began, home = time.monotonic(), folder / f"home-{name}"
    try:
        study = Study.open(name, home=home)
    except OnefoldError:
        study = Study(
            f"{file}:{WORKLOADS[name]}",
            device="host",
            budget=Budget(trials=1, max_epochs=epochs),
            search=SearchOptions(rungs="none"),
            serving=ServingOptions(measure="winner"),
            knobs="off",
            parallelism=ParallelismOptions(
                parallel=1,
                threads=len(os.sched_getaffinity(0)),
                accelerator="cuda" if torch.cuda.is_available() else "cpu",
            ),
            name=name,
            home=home,
        )
    result = study.run()
    result.save(target)
    print(f"{name}: test {dict(result.test)} in {time.monotonic() - began:.0f} s", flush=True)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(WORKLOADS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    train(options.model, options.folder, options.epochs or EPOCHS[options.model])


if __name__ == "__main__":
    main()
