"""Rules of a retraining: which plans to try, and how to react during training. `rule_file` reads them.

[[narrow]]
name = "enough updates"
when = "updates < 20 and effective_batch > 16"
then = "refuse"
say = "only {updates} updates of {effective_batch} samples each fit into the window"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Fact = float | str | bool

TYPE_NAMES = {float: "a number", str: "a string", bool: "a boolean"}
_PLAN_FACTS: dict[str, type[Fact]] = {
    "batch_size": float,
    "accumulation": float,
    "effective_batch": float,
    "segments": float,
    "epochs": float,
    "freeze_rate": float,
    "lr": float,
    "optimizer": str,
    "layers": float,
    "has_batch_norm": bool,
    "samples": float,
    "updates": float,
    "passes": float,
    "update_s": float,
    "window_s": float,
    "fastest_update_share": float,
    "memory_bytes": float,
    "limit_bytes": float,
}
_PROGRESS_FACTS: dict[str, type[Fact]] = {
    "elapsed_s": float,
    "left_s": float,
    "micro_window_s": float,
    "loss": float,
    "best_loss": float,
    "first_loss": float,
    "is_finite": bool,
    "score": float,
    "best_score": float,
    "first_score": float,
    "gain_per_s": float,
    "stalled": float,
    "lowered": float,
    "merit": float,
    "best_other_merit": float,
    "plans": float,
    "predicted_bytes": float,
    "measured_bytes": float,
    "free_bytes": float,
}
FACTS: dict[str, dict[str, type[Fact]]] = {"narrow": _PLAN_FACTS, "react": _PLAN_FACTS | _PROGRESS_FACTS}
ACTIONS = {
    "narrow": ("refuse", "prefer", "defer"),
    "react": ("replan", "switch plan", "lower lr", "restore best", "finish"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of a rule."""

    then: str  # an action; "keep" for a plan that no narrow rule applies to
    rule: str  # name of the rule; empty if none held
    said: str


class Condition(Protocol):
    """The condition of a rule."""

    def matches(self, facts: Mapping[str, Fact]) -> bool:
        """Return whether the condition is true; raises ArithmeticError if it cannot be evaluated with these facts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition, an action, and a message."""

    name: str
    when: str
    then: str
    say: str
    condition: Condition = field(repr=False, compare=False)  # `when`, parsed

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Return whether the condition is true; False if it cannot be evaluated with these facts."""
        try:
            return bool(self.condition.matches(facts))
        except ArithmeticError:
            # Types were checked when the rule was read: this is a division by zero or an overflow in a user's rule,
            # which must not end a retraining.
            return False

    def verdict(self, facts: Mapping[str, Fact]) -> Verdict:
        """Return the decision, with the facts filled into the message."""
        shown = {name: _without_fraction(fact) for name, fact in facts.items()}
        return Verdict(self.then, self.name, self.say.format_map(shown))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that narrow down plans and those that react during training, each in order.

    Callers give every fact of the kind (`FACTS`). An unknown number is nan, and no comparison with it holds.
    """

    narrow: tuple[Rule, ...]
    react: tuple[Rule, ...]

    def verdict(self, facts: Mapping[str, Fact]) -> Verdict:
        """Judge a plan: "refuse" if any rule refuses it, else the action of the first rule that holds, else "keep"."""
        refusing_first = sorted(self.narrow, key=lambda rule: rule.then != "refuse")
        return _first_verdict(refusing_first, facts, "narrow") or Verdict("keep", "", "")

    def reaction(self, facts: Mapping[str, Fact]) -> Verdict | None:
        """Return the action of the first rule that holds after a micro-window; None to continue."""
        return _first_verdict(self.react, facts, "react")


def _first_verdict(rules: Iterable[Rule], facts: Mapping[str, Fact], kind: str) -> Verdict | None:
    plain = {name: fact_type(facts[name]) for name, fact_type in FACTS[kind].items()}  # rule_engine rejects numpy
    return next((rule.verdict(facts) for rule in rules if rule.holds(plain)), None)


def _without_fraction(fact: Fact) -> Fact:
    return int(fact) if isinstance(fact, float) and fact.is_integer() else fact
