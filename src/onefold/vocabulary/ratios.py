"""The ratios of inference-aware tuning: the cost of training and of a number of served samples per unit of quality."""

from __future__ import annotations

from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.expression import is_plain

SERVED_SAMPLES = "served_samples"  # a metric that studies with a device have: how many samples ratios count
RATIOS = {
    "time_ratio": f"train_time_s + {SERVED_SAMPLES} * latency_s",
    "energy_ratio": f"energy_j + {SERVED_SAMPLES} * energy_per_sample_j",
}
FORMER_FORMULAS = {  # before 0.2.0
    "time_ratio": "(train_time_s + latency_s) / accuracy",
    "energy_ratio": "(energy_j + energy_per_sample_j) / accuracy",
}


def ratio_formula(ratio: str, metric: str = "accuracy", maximize: bool = True) -> str:
    """Return the expression of a ratio: its cost divided by a metric to maximize, or times one to minimize.

    It is undefined where a metric to maximize is not above 0. Raises ObjectiveError for a metric that expressions
    cannot name.
    """
    if not is_plain(metric):
        raise ObjectiveError(
            f"{ratio} needs a metric whose name is an identifier, and the workload's own is {metric!r}; report it as "
            "one, such as top1_percent"
        )
    return f"({RATIOS[ratio]}) / max({metric}, 0)" if maximize else f"({RATIOS[ratio]}) * {metric}"
