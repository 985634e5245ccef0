"""The claims about tuned knobs and their bars, which were fixed before the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median

from claims import Claim

from knob_training.sections import WORKLOADS, Row

EXACT_SPEEDUP, REDUCED_SPEEDUP, CONTENTION_SPEEDUP, MIN_SPEEDUP = 1.2, 1.5, 2.0, 0.97
MAX_PROBING_COST, MAX_RECALL_LOSS, MAX_ACCURACY_LOSS = 0.03, 0.03, 0.003
MAX_RECOVERY_WINDOWS = 20


def variant_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about speed, accuracy and the cost of probing."""
    exact, reduced = _speedups(rows, "knobs"), _speedups(rows, "reduced")
    contention = geometric_mean(_speedups(rows, "knobs, contention", "defaults, contention"))
    exact_mean, reduced_mean, slowest = geometric_mean(exact), geometric_mean(reduced), min(exact + reduced)
    loss = max(_accuracy_loss(rows, "knobs"), _accuracy_loss(rows, "reduced"))
    cost = max(row["probing cost"] for row in rows if row["variant"] == "knobs")
    return [
        Claim("speedup in full precision", f">= {EXACT_SPEEDUP}x", f"{exact_mean:.2f}x", exact_mean >= EXACT_SPEEDUP),
        Claim("speedup in reduced precision", f">= {REDUCED_SPEEDUP}x", f"{reduced_mean:.2f}x",
              reduced_mean >= REDUCED_SPEEDUP),
        Claim("speedup under contention", f">= {CONTENTION_SPEEDUP}x", f"{contention:.2f}x",
              contention >= CONTENTION_SPEEDUP),
        Claim("smallest speedup", f">= {MIN_SPEEDUP}x", f"{slowest:.2f}x", slowest >= MIN_SPEEDUP),
        Claim("largest loss of accuracy", f"<= {MAX_ACCURACY_LOSS}", f"{loss:+.4f}", loss <= MAX_ACCURACY_LOSS),
        Claim("largest cost of probing", f"<= {MAX_PROBING_COST:.0%}", f"{cost:.1%}", cost <= MAX_PROBING_COST),
    ]  # fmt: skip


def recall_claims(rows: Sequence[Row], pairs: Sequence[Row]) -> list[Claim]:
    """Return the claims about similar jobs and about recognizing them."""
    probed = sum(row["probed windows"] for row in rows)
    ratio = max(row["step time relative to best"] for row in rows)
    right = sum(row["right"] for row in pairs)
    return [
        Claim("similar job: windows probed for more than threads", "0", str(probed), probed == 0),
        Claim("similar job: step time relative to the best", f"<= {1 + MAX_RECALL_LOSS}x", f"{ratio:.2f}x",
              ratio <= 1 + MAX_RECALL_LOSS),
        Claim("labeled pairs classified correctly", f"{len(pairs)} of {len(pairs)}", f"{right} of {len(pairs)}",
              right == len(pairs)),
    ]  # fmt: skip


def recovery_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return the claim about contention in the middle: the median over seeds of the slowest workload."""
    windows = max(
        median(row["windows until recovery"] for row in rows if row["workload"] == workload)
        for workload in dict.fromkeys(row["workload"] for row in rows)
    )
    return [
        Claim("windows until the last slow one under contention", f"<= {MAX_RECOVERY_WINDOWS}", f"{windows:g}",
              windows <= MAX_RECOVERY_WINDOWS)
    ]  # fmt: skip


def _speedups(rows: Sequence[Row], variant: str, baseline: str = "defaults") -> list[float]:
    """Return the median speedup over seeds for each workload."""

    def times_s(variant: str, workload: str) -> list[float]:
        return [row["train s"] for row in rows if (row["variant"], row["workload"]) == (variant, workload)]

    return [
        median(before / after for before, after in zip(times_s(baseline, name), times_s(variant, name)))
        for name in WORKLOADS
    ]


def _accuracy_loss(rows: Sequence[Row], variant: str) -> float:
    """Return the largest loss of accuracy of any workload, as the mean over seeds."""

    def mean_accuracy(variant: str, workload: str) -> float:
        accuracies = [row["accuracy"] for row in rows if (row["variant"], row["workload"]) == (variant, workload)]
        return float(sum(accuracies) / len(accuracies))

    return max(mean_accuracy("defaults", name) - mean_accuracy(variant, name) for name in WORKLOADS)
