"""Two steps: the best trials of a study, compressed once it has ended, and the variant to take.

HOME/studies/NAME/variants/           what is known of each trial's variants
HOME/studies/NAME/compressed/         the deployment folder of the one to take
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onefold.compression.api import pack_beside
from onefold.compression.selection import choose
from onefold.compression.trial_variants import TrialVariants, VariantRequest
from onefold.device import Device
from onefold.engine import Call, Engine, answer
from onefold.serving.api import measure
from onefold.serving.options import ServingOptions
from onefold.store.home import Home
from onefold.training.trainer import Tick, Trainer
from onefold.training.trial_files import best_weights_file
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import Config, Metrics, Trial
from onefold.vocabulary.requirement import Bound
from onefold.vocabulary.variants import COMPRESSED_FOLDER, Recipe, Shortlist, TrialVariant, Variant

BEST = 10  # trials
EPOCHS = 3  # of training after pruning
DROP = 0.01  # of the metric, which a variant may lose
RECIPES = (
    Recipe(precision="int8"),
    Recipe(sparsity=0.8, precision="int8"),
    Recipe(channels=0.5, precision="int8"),
    Recipe(sparsity=0.8, channels=0.5, precision="int8"),
)


@dataclass(frozen=True)
class AfterStudyCompression:
    """Compresses the best trials of a study."""

    objective: Objective
    quality: Objective
    serving: ServingOptions
    engine: Engine
    folder: Path
    home: Home
    device: Device
    host: Device
    tell: Callable[[str], None]

    def compress(self, trials: Sequence[Trial], best: Trial, about: Mapping[str, Any]) -> Shortlist:
        """The best trials in several forms; the one to take is made ready to deploy, unless it is the best as it is."""
        orders = self._orders(trials, best)

        def tell(done: int, of: int) -> None:
            self.tell(f"compressing the best trials and measuring them on {self.device.name}: {done} of {of}")

        place = self.folder / "variants"
        with TrialVariants(
            self.engine, self.device, self.host, self.home.locks.measurement, place, keep=True, tell=tell
        ) as forms:
            found = forms.of(orders)
            if best.number not in found:
                raise ModelError(
                    f"trial {best.number} cannot be compressed: {forms.failures.get(best.number, 'no weights')}"
                )
            failures = {str(trial): reason for trial, reason in forms.failures.items()}
            bounds = self.objective.settled(trial.metrics for trial in trials if trial.finished_rungs).require
            shortlist = replace(self._shortlist(found, best, bounds), failures=failures)
            shutil.rmtree(self.folder / COMPRESSED_FOLDER, ignore_errors=True)
            choice = shortlist.choice
            if not (choice.trial == best.number and choice.variant.recipe.is_plain):  # which is handed over in any case
                order = next(order for order in orders if order.trial == choice.trial)
                model = forms.file(order, choice.variant.recipe)
                shortlist = replace(shortlist, test=self._tested(order.config, model))
                self._deploy(shortlist, model, {**about, "trial": order.trial, "config": dict(order.config)})
        return shortlist

    def _orders(self, trials: Sequence[Trial], best: Trial) -> list[VariantRequest]:
        others = (trial for trial in ranked(trials, self.objective) if trial.number != best.number)
        return [
            VariantRequest(trial.number, trial.config, str(weights), RECIPES, EPOCHS, DROP, lenient=True)
            for trial in [best, *(trial for trial in others if trial.failure is None)][:BEST]
            if (weights := best_weights_file(self.folder, trial.number, trial.finished_rungs[-1].rung)) is not None
        ]

    def _shortlist(
        self, found: Mapping[int, tuple[Variant, ...]], best: Trial, bounds: Mapping[str, Bound]
    ) -> Shortlist:
        goal = self.quality.goals[0]
        all_of_them = [TrialVariant(trial, variant) for trial, forms in found.items() for variant in forms]
        names = {id(one.variant): str(one) for one in all_of_them}
        plain, *others = (one.variant for one in sorted(all_of_them, key=lambda one: one.trial != best.number))
        broken = {names[id(one)]: why for one in others if (why := _broken_by(one, bounds))}
        kept = [one for one in others if names[id(one)] not in broken]
        pick = choose(plain, kept, goal.metric, goal.maximize, "size", DROP, lambda one: names[id(one)])
        refused = {**pick.refused, **broken}
        told = tuple(replace(one, refused=refused.get(str(one), "")) for one in all_of_them)
        taken = next(place for place, one in enumerate(told) if one.variant is pick.chosen)
        return Shortlist(self.device.name, goal.metric, told, taken, pick.why)

    def _tested(self, config: Config, model: Path) -> Metrics:
        found = answer(self.engine, Call(score_file, (config, str(model))))
        return found if isinstance(found, dict) else {}

    def _deploy(self, shortlist: Shortlist, model: Path, about: Mapping[str, Any]) -> None:
        variant = shortlist.choice.variant
        said = {"variant": str(variant.recipe), "metrics": dict(variant.metrics), "test": dict(shortlist.test)}
        self.tell(f"measuring {shortlist.choice} with care")
        measure(
            model,
            self.device,
            serve_for=self.serving.optimize_for,
            serving_search=self.serving.search,
            serving_space=self.serving.space,
            scenarios=self.serving.scenarios,
            scenario_goal=self.serving.scenario_goal,
            save=self.folder / COMPRESSED_FOLDER,
            home=self.home.path,
            about={**about, **said},
        )
        pack_beside(self.folder / COMPRESSED_FOLDER, variant)


def _broken_by(variant: Variant, bounds: Mapping[str, Bound]) -> str:
    """The first of the study's requirements that a variant breaks, of those on what is known of it."""
    known = {**variant.metrics, "latency_s": variant.latency_s}
    broken = (name for name, bound in bounds.items() if name in known and bound.violation(known[name]) > 0)
    return next((f"{name}{bounds[name]} is required" for name in broken), "")


def score_file(trainer: Trainer, config: Config, model: str, *, tick: Tick) -> Generator[None, None, Metrics]:
    """The metrics of a model's file on the test data."""
    from onefold.compression.variant_builder import OnnxModule

    yield from ()
    return trainer.open_model(config, tick=tick).test(OnnxModule(Path(model)))
