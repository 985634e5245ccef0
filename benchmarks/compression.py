"""Size, latency and accuracy of compressed models: LeNet on Fashion-MNIST, a ResNet on CIFAR-10.

Each network is trained, then pruned, quantized and packed; separately, its channels are pruned and it is quantized.
Accuracy is that of the runtime's outputs on the validation data. Latency is measured interleaved with the plain model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from claims import Claim, arguments, conclude, table

from onefold import Recipe, compress
from onefold.compression.api import CompressOptions
from onefold.study.api import single_trial

MIN_SIZE_RATIO, MAX_SPARSE_LOSS = 10.0, 0.012
MIN_SPEEDUP, MAX_CHANNEL_LOSS = 2.0, 0.015
# Epochs of training, and sizes near the top of the space, where tuning for accuracy ends.
WORKLOADS = {"fashion": 12, "cifar10": 20}
SIZES = {"fashion": {"filters": 24, "hidden": 256}, "cifar10": {"width": 24, "depth": 14}}
FINE_TUNING_EPOCHS = 10
SPARSE = Recipe(sparsity=0.8, precision="int8")
NARROW = Recipe(channels=0.5, precision="int8")


def measure_workload(workload: str, epochs: int, fine_tuning: int) -> list[dict[str, Any]]:
    """Train a network and compress it; return a row for each variant."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        model = single_trial(workload, SIZES[workload], epochs=epochs, home=home).run().save(Path(folder) / "model")
        recipes = [Recipe(precision="int8"), Recipe(sparsity=0.8), SPARSE, Recipe(channels=0.5), NARROW]
        options = CompressOptions(max_metric_loss=MAX_SPARSE_LOSS / 2, epochs=fine_tuning)
        result = compress(model, recipes, options=options, home=home)
    return [
        {
            "workload": workload, "variant": str(variant.recipe), "accuracy": variant.metrics["accuracy"],
            "latency us": variant.latency_s * 1e6, "size": variant.size_bytes,
            "deflate": variant.encoded_bytes["deflate"],
            "zstd": variant.encoded_bytes["zstd"], "MFLOP": variant.flops / 1e6,
            "useful": variant.useful_flops / 1e6,
            "smaller": result.plain.size_bytes / variant.smallest_bytes,
            "faster": result.plain.latency_s / variant.latency_s,
            "lost": result.plain.metrics["accuracy"] - variant.metrics["accuracy"],
            "chosen": variant is result.chosen,
        }
        for variant in (result.plain, *result.variants)
    ]  # fmt: skip


def claims_of(rows: list[dict[str, Any]]) -> list[Claim]:
    """Return the claims about both variants of each network."""
    claims = []
    for workload in WORKLOADS:
        variants = {row["variant"]: row for row in rows if row["workload"] == workload}
        sparse, narrow = variants[str(SPARSE)], variants[str(NARROW)]
        claims += [
            Claim(f"{workload}: {SPARSE}, encoded", f">= {MIN_SIZE_RATIO:g}x smaller", f"{sparse['smaller']:.1f}x",
                  sparse["smaller"] >= MIN_SIZE_RATIO),
            Claim(f"{workload}: {SPARSE}, accuracy lost", f"<= {MAX_SPARSE_LOSS}", f"{sparse['lost']:+.4f}",
                  sparse["lost"] <= MAX_SPARSE_LOSS),
            Claim(f"{workload}: {NARROW}, latency", f">= {MIN_SPEEDUP:g}x lower", f"{narrow['faster']:.2f}x",
                  narrow["faster"] >= MIN_SPEEDUP),
            Claim(f"{workload}: {NARROW}, accuracy lost", f"<= {MAX_CHANNEL_LOSS}", f"{narrow['lost']:+.4f}",
                  narrow["lost"] <= MAX_CHANNEL_LOSS),
        ]  # fmt: skip
    return claims


def main() -> None:
    options = arguments(__doc__)
    rows = []
    for workload, epochs in WORKLOADS.items():
        rows += measure_workload(
            workload, epochs // 4 if options.quick else epochs, 3 if options.quick else FINE_TUNING_EPOCHS
        )
        table(rows[-6:])
    conclude("compression", claims_of(rows), rows, quick=options.quick)


if __name__ == "__main__":
    main()
