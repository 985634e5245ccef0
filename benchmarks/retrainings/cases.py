"""The plan of cases: which model meets which data, under which limits and with which strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

ONEFOLD, FIXED = "onefold", "fixed"
COMPARATORS = ("static", "dgc", "dga", "sage", "bayesian")
STRATEGIES = (ONEFOLD, FIXED, *COMPARATORS)
MODELS = ("resnet50", "mobilenet", "vit")
NATURAL = "natural"
DOMAINS = (  # those of the paper's table 4; natural has no shift, so that retraining can hardly gain and may lose
    NATURAL, "gaussian_noise", "shot_noise", "speckle_noise", "impulse_noise", "defocus_blur", "gaussian_blur",
    "motion_blur", "zoom_blur", "snow", "fog", "brightness", "contrast", "saturate", "frost",
)  # fmt: skip
SEVERITY, SEVERITIES = 5, (3, 4, 5)  # of the comparison, and of further cases
LIMITS_MB = {  # the first of each is that of the comparison
    "resnet50": (1000, 950, 1200, 1500, 2000),
    "mobilenet": (500, 550, 650, 800),
    "vit": (600, 550, 700, 1000),
    "quick": (500, 600),
}
WINDOWS_S = {"resnet50": 60, "mobilenet": 45, "vit": 60, "quick": 20}
WINDOW_FACTORS = (0.8, 1.0, 1.25)  # of further cases
NEW_SAMPLES = {"resnet50": 1250, "mobilenet": 2500, "vit": 1250, "quick": 1250}  # a fifth of them for validation
FURTHER_CASES = 160  # of onefold, besides the comparison


@dataclass(frozen=True)
class Case:
    """One retraining: a model, new data, limits and a strategy."""

    model: str
    domain: str
    severity: int
    strategy: str
    memory_mb: int
    window_s: int
    is_compared: bool
    is_busy: bool = False  # a neighbor computes on the same core
    has_history: bool = False  # the home knows earlier retrainings of the model

    @property
    def shift(self) -> str:
        """Return the name of the new data."""
        return f"{self.domain}-{self.severity}"

    @property
    def key(self) -> str:
        """Return the key of the case among the finished ones."""
        parts = [
            self.model, self.shift, self.strategy, f"{self.memory_mb}MB", f"{self.window_s}s",
            *["compared"] * self.is_compared, *["busy"] * self.is_busy, *["history"] * self.has_history,
        ]  # fmt: skip
        return "/".join(parts)

    @property
    def group(self) -> tuple[str, str]:
        """Return model and domain, which the strategies of a comparison share."""
        return self.model, self.domain


def plan_cases(*, quick: bool) -> list[Case]:
    """Return all cases in an order of which each prefix is balanced over models, domains and strategies."""
    if quick:
        return _ordered(("quick",), ("gaussian_noise", "fog"), (ONEFOLD, FIXED, "static", "sage"), 4)
    return _ordered(MODELS, DOMAINS, STRATEGIES, FURTHER_CASES)


def _ordered(models: tuple[str, ...], domains: tuple[str, ...], strategies: tuple[str, ...], count: int) -> list[Case]:
    """Return the groups of the comparison one after the other, with further cases between them."""
    rng = random.Random(0)
    groups = [
        (model, domains[(step + shift * len(domains) // len(models)) % len(domains)])
        for step in range(len(domains))
        for shift, model in enumerate(models)
    ]
    further = _further(models, domains, rng)
    cases: list[Case] = []
    seen: set[str] = set()
    for number, (model, domain) in enumerate(groups):
        compared = [
            Case(model, domain, SEVERITY, strategy, LIMITS_MB[model][0], WINDOWS_S[model], is_compared=True)
            for strategy in strategies
        ]
        cases += rng.sample(compared, len(compared))
        while len(seen) < count * (number + 1) // len(groups):
            if (case := next(further)).key not in seen:
                seen.add(case.key)
                cases.append(case)
    return cases


def _further(models: tuple[str, ...], domains: tuple[str, ...], rng: random.Random) -> Iterator[Case]:
    """Yield cases of onefold with other data, limits and windows, half of them beside a neighbor."""
    while True:
        shuffled = rng.sample(domains, len(domains))
        for step in range(len(shuffled)):
            for shift, model in enumerate(models):
                yield Case(
                    model,
                    shuffled[(step + shift) % len(shuffled)],
                    rng.choice(SEVERITIES),
                    ONEFOLD,
                    rng.choice(LIMITS_MB[model]),
                    round(rng.choice(WINDOW_FACTORS) * WINDOWS_S[model]),
                    is_compared=False,
                    is_busy=(step + shift) % 2 == 0,
                    has_history=rng.random() < 0.5,
                )
