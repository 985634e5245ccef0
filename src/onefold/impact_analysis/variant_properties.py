"""The properties of a variant that arms are compared by: its metric, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.vocabulary.records import Metrics
from onefold.vocabulary.variants import Variant


def variant_properties(variant: Variant, metric: str) -> Metrics:
    """Return the metric and the costs of a variant; unknown costs are left out."""
    properties = {
        metric: variant.metrics[metric],
        "latency_s": variant.latency_s,
        "size_bytes": float(variant.size_bytes),
        "encoded_bytes": float(variant.smallest_bytes),
        "flops": variant.flops,
        "useful_flops": variant.useful_flops,
    }
    if variant.energy.joules is not None:
        properties["energy_j"] = variant.energy.joules
    if variant.memory_bytes is not None:
        properties["memory_bytes"] = float(variant.memory_bytes)
    return properties


def control_properties(plain: Metrics, forms: Sequence[Variant], metric: str) -> Metrics:
    """Return the properties of the control: the costs of the plain model, and the metric after as much training."""
    if len(forms) < 2 or metric not in forms[1].control:
        return {}
    return {**plain, metric: forms[1].control[metric]}
