"""Size, speed and accuracy of compressed models: LeNet, a ResNet, a text CNN and a transformer encoder.

Each network is trained on its data set, and compressed by each of its recipes: channels are removed, weights are pruned
and quantized, with fine-tuning in between, and the file is packed. `onefold compress` hands over the smallest variant
that loses at most a point on the validation data. Claims are about the files that are handed over: the size of the
packed one against the uncompressed ONNX file, accuracy on the test data, which no decision has used, and the time of
single samples through `deploy.load(folder)(inputs)`, in turn with the uncompressed model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from claims import Claim, arguments, conclude, table

from onefold import Recipe, compress, deploy
from onefold.compression.api import PACKED, CompressOptions
from onefold.serving.export import samples_beside
from onefold.study.api import single_trial
from onefold.vocabulary.workload_reference import load

METHOD_VERSION = 2  # one file has to be small, fast and accurate, on the test data and through the user's call
MIN_SIZE_RATIO, MIN_SPEEDUP, MAX_LOSS = 12.0, 2.0, 0.01
ROUNDS, WARM_UP_ROUNDS = 2000, 200
BATCH_SIZE = 250  # of the calls that score the test data
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A network near the top of its space, where tuning for accuracy ends, and how it is trained and compressed."""

    title: str
    workload: str
    config: Mapping[str, Any]
    epochs: int
    fine_tuning_epochs: int
    recipes: Sequence[Recipe]
    quick_epochs: int = 0  # with --quick, which leaves out subjects without


# Integer kernels pay for wide layers. LeNet's are so narrow that the runtime computes them faster in fp32, so that only
# its weights are quantized; of transformers, dynamic quantization loses less than static.
SUBJECTS = (
    Subject(
        "LeNet, Fashion-MNIST",
        "fashion",
        {"filters": 24, "hidden": 256},
        epochs=12,
        fine_tuning_epochs=10,
        recipes=[Recipe(channels=share, precision="int8-weight-only") for share in (0.5, 0.6)],
        quick_epochs=3,
    ),
    Subject(
        "ResNet, CIFAR-10",
        "cifar10",
        {"width": 24, "depth": 14},
        epochs=20,
        fine_tuning_epochs=10,
        recipes=[Recipe(channels=0.5, precision="int8")],
    ),
    Subject(
        "text CNN, 20 Newsgroups",
        "newsgroups-cnn",
        {"embedding": 128, "filters": 128, "kernel": 5},
        epochs=5,
        fine_tuning_epochs=4,
        recipes=[Recipe(sparsity=0.8, precision="int8")],
    ),
    Subject(
        "transformer, AG News",
        "onefold.workloads.text_transformer:AgNewsTransformer",
        {"width": 128, "depth": 2, "heads": 4, "expansion": 4},
        epochs=4,
        fine_tuning_epochs=4,
        recipes=[
            Recipe(channels=0.5, sparsity=0.5, precision="int8-dynamic"),
            Recipe(channels=0.6, precision="int8-dynamic"),
        ],
        quick_epochs=1,
    ),
)


def measure_subject(subject: Subject, epochs: int, fine_tuning: int) -> list[Row]:
    """Train a network and compress it; return a row for each variant, of which one is handed over."""
    with tempfile.TemporaryDirectory() as folder:
        home, model = Path(folder) / "home", Path(folder) / "model"
        single_trial(subject.workload, subject.config, epochs=epochs, home=home).run().save(model)
        result = compress(
            model,
            subject.recipes,
            options=CompressOptions(max_metric_loss=MAX_LOSS, epochs=fine_tuning),
            save_all=Path(folder) / "variants",
            home=home,
        )
        folders = {name: Path(path) for name, path in result.folders.items()}
        latencies_s = time_calls(folders, home)
        test = load(subject.workload).data().test
        accuracies = {name: served_accuracy(path, home, test) for name, path in folders.items()}
        plain = str(result.plain.recipe)
        return [
            {
                "subject": subject.title, "variant": name, "validation": variant.metrics["accuracy"],
                "test": accuracies[name], "us": latencies_s[name] * 1e6,
                "bytes": (folders[name] / deploy.MODEL).stat().st_size,
                "packed": (folders[name] / PACKED).stat().st_size,
                "smaller": (folders[plain] / deploy.MODEL).stat().st_size / (folders[name] / PACKED).stat().st_size,
                "faster": latencies_s[plain] / latencies_s[name],
                "lost": accuracies[plain] - accuracies[name],
                "handed over": variant is result.chosen,
            }
            for variant in (result.plain, *result.variants)
            for name in [str(variant.recipe)]
        ]  # fmt: skip


def served_accuracy(folder: Path, home: Path, test: Sequence[Any]) -> float:
    """Return the accuracy of a deployed model on the test data, by the answers of its calls."""
    *inputs, targets = (np.asarray(part) for part in test)
    model, right = deploy.load(folder, home=home), 0
    for start in range(0, len(targets), BATCH_SIZE):
        scores = model(*(part[start : start + BATCH_SIZE] for part in inputs))
        right += int((np.argmax(scores, axis=1) == targets[start : start + BATCH_SIZE]).sum())
    return right / len(targets)


def time_calls(folders: Mapping[str, Path], home: Path) -> dict[str, float]:
    """Return the median seconds of a call with one sample, over models in turn."""
    served = {name: deploy.load(folder, home=home) for name, folder in folders.items()}
    with np.load(samples_beside(next(iter(folders.values())) / deploy.MODEL)) as samples:
        inputs = [samples[name] for name in samples.files]
    taken: dict[str, list[float]] = {name: [] for name in served}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        place = number % len(inputs[0])
        sample = [values[place : place + 1] for values in inputs]
        for name, model in served.items():
            started = time.perf_counter()
            model(*sample)
            taken[name].append(time.perf_counter() - started)
    return {name: median(times[WARM_UP_ROUNDS:]) for name, times in taken.items()}


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about the files that are handed over."""
    claims = []
    for row in (row for row in rows if row["handed over"]):
        title = f"{row['subject']}: {row['variant']}"
        claims += [
            Claim(f"{title}, packed size", f">= {MIN_SIZE_RATIO:g}x smaller", f"{row['smaller']:.1f}x",
                  row["smaller"] >= MIN_SIZE_RATIO),
            Claim(f"{title}, time of a call", f">= {MIN_SPEEDUP:g}x faster", f"{row['faster']:.2f}x",
                  row["faster"] >= MIN_SPEEDUP),
            Claim(f"{title}, test accuracy lost", f"<= {MAX_LOSS:g}", f"{row['lost']:+.4f}", row["lost"] <= MAX_LOSS),
        ]  # fmt: skip
    return claims


def main() -> None:
    options = arguments(__doc__)
    rows: list[Row] = []
    for subject in SUBJECTS:
        if options.quick and not subject.quick_epochs:
            continue
        epochs, fine_tuning = (
            (subject.quick_epochs,) * 2 if options.quick else (subject.epochs, subject.fine_tuning_epochs)
        )
        found = measure_subject(subject, epochs, fine_tuning)
        table(found)
        rows += found
    conclude("compression", claims_of(rows), rows, quick=options.quick)


if __name__ == "__main__":
    main()
