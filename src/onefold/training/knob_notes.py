"""How the decisions of knob tuning are described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRIFT_FACTOR = 1.3  # a step time that changes by more is drift


def drift_note(factor: float, load_change: float) -> str:
    """Return why knobs are probed again."""
    if max(factor, 1 / factor) > DRIFT_FACTOR:
        return f"a step takes {factor:.2g}x as long as before: probing again"
    change = "more" if load_change > 0 else "fewer"
    return f"other processes keep {abs(load_change):.1f} {change} cores busy than before: probing again"


def describe(setting: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the knobs of a setting that differ from their defaults."""
    changed = [f"{name} {value}" for name, value in setting.items() if defaults.get(name) != value]
    return ", ".join(changed) if changed else "the defaults are best"
