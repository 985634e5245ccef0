"""The measurements: variants of a training, similar jobs, pairs of profiles, contention from the middle on."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from claims import table
from claims.journal import Journal

from knob_training.training import TrainingRequest, TrainingResult, train
from onefold.training.knob_memory import SimilarJobs
from onefold.vocabulary.knobs import JobProfile, KnobMemory, KnobOptions, Phase, StepWindow
from onefold.vocabulary.records import Config, to_json

Row = dict[str, Any]
WORKLOADS = {"fashion": 0.5, "newsgroups-cnn": 1.0, "newsgroups-lstm": 0.5, "cifar10": 0.3}  # share of the data
CONTENTION_WORKLOADS = ("fashion", "newsgroups-cnn")
CONTENTION_DATA = 0.5  # times as much data: two threads under contention are very slow
CONTENTION_KNOBS = ("threads", "cores")  # tested after every recall
RECALL_SEEDS = (7, 8, 9)
MIN_SHARE_OF_SPEED = 0.90  # of the best speed under contention: slower windows are slow
VARIANTS = {  # the knob options, and whether the training is under contention
    "defaults": (KnobOptions("off"), False),
    "knobs": (KnobOptions("probe"), False),
    "reduced": (KnobOptions("probe", reduced=True), False),
    "defaults, contention": (KnobOptions("off"), True),
    "knobs, contention": (KnobOptions("probe"), True),
}
Job = tuple[str, dict[str, Any]]  # a workload and where its configuration differs from the default
SIMILAR: list[tuple[Job, Job]] = [  # jobs that differ little, or in hyperparameters that do not change a step's cost
    (("fashion", {}), ("fashion", {"lr": 0.01, "dropout": 0.3})),
    (("fashion", {}), ("mnist", {})),
    (("newsgroups-cnn", {}), ("newsgroups-cnn", {"lr": 0.01})),
    (("cifar10", {}), ("cifar10", {"optimizer": "sgd"})),
]
DISSIMILAR: list[tuple[Job, Job]] = [
    (("fashion", {}), ("cifar10", {})),
    (("newsgroups-cnn", {}), ("newsgroups-lstm", {})),
    (("newsgroups-lstm", {}), ("fashion", {})),
    (("fashion", {"batch_size": 32}), ("fashion", {"batch_size": 1024})),
]
PROFILE_EPOCHS, PROFILE_DATA = 4, 0.1


@dataclass(frozen=True)
class VariantRun:
    """A training of a workload with one of the variants."""

    workload: str
    variant: str
    seed: int
    result: TrainingResult

    @property
    def row(self) -> Row:
        """Return its figures."""
        settled = next((memory.knobs for memory in self.result.learned), Config())
        return {
            "workload": self.workload, "variant": self.variant, "seed": self.seed, "train s": self.result.time_s,
            "energy J": self.result.energy_j, "energy source": self.result.energy_source,
            "accuracy": self.result.accuracy, "settled": " ".join(f"{name}={value}" for name, value in settled.items()),
        }  # fmt: skip


class Measurements:
    """The sections of the benchmark; each training is run once and kept in the journal.

    Args:
        journal: The trainings that are finished.
        epochs: Epochs of a full training.
        scale: Share of the data of a full run.
    """

    def __init__(self, journal: Journal, epochs: int, scale: float) -> None:
        self.journal, self.epochs, self.scale = journal, epochs, scale

    def compare_variants(self, seeds: Iterable[int]) -> list[VariantRun]:
        """Train each workload with all variants, in random order for each seed."""
        runs = []
        for seed in seeds:
            for workload, share in WORKLOADS.items():
                for variant in random.Random(f"{seed} {workload}").sample(list(VARIANTS), len(VARIANTS)):
                    knobs, contention = VARIANTS[variant]
                    data = share * self.scale * (CONTENTION_DATA if contention else 1.0)
                    request = TrainingRequest(workload, knobs, self.epochs, data, seed)
                    name = f"{workload}, seed {seed}: {variant}"
                    runs.append(VariantRun(workload, variant, seed, self._train(name, request, contention=contention)))
                    table([runs[-1].row])
        return runs

    def recall(self, known: Sequence[KnobMemory]) -> list[Row]:
        """Train a similar job for each workload with everything that earlier jobs learned."""
        rows = []
        for workload, share in WORKLOADS.items():
            probed, ratios = 0, []
            for seed in RECALL_SEEDS:
                name, size = f"{workload}, seed {seed}", (max(2, self.epochs // 3), share * self.scale)
                request = TrainingRequest(workload, KnobOptions("on"), *size, seed, known=tuple(known))
                similar = self._train(f"{name}: with history", request)
                # The best knobs are measured again, since the speed of the machine may have changed.
                best = self._train(
                    f"{name}: probed again", TrainingRequest(workload, KnobOptions("probe"), *size, seed)
                )
                probed += count_probed_beyond_contention(similar.windows)
                steps_s, best_s = similar.step_times(Phase.RECALLED), best.step_times(Phase.SETTLED)
                ratios.append(median(steps_s) / median(best_s) if steps_s and best_s else math.inf)
            rows.append({"workload": workload, "probed windows": probed, "step time relative to best": median(ratios)})
        table(rows)
        return rows

    def classify_pairs(self) -> list[Row]:
        """Test for labeled pairs of jobs whether exactly the similar ones are recognized."""
        profiles = {
            json.dumps(job): self._profile(*job) for pair in (*SIMILAR, *DISSIMILAR) for job in pair
        }  # fmt: skip
        rows = []
        for label, pairs in (("similar", SIMILAR), ("dissimilar", DISSIMILAR)):
            for known, new in pairs:
                memory = KnobMemory("", "time", False, profiles[json.dumps(known)], Config(), 1.0, 1.0)
                is_recalled = SimilarJobs([memory]).find(profiles[json.dumps(new)]) is not None
                rows.append({
                    "known": f"{known[0]} {known[1] or ''}", "new": f"{new[0]} {new[1] or ''}", "label": label,
                    "recalled": is_recalled, "right": is_recalled == (label == "similar"),
                })  # fmt: skip
        table(rows)
        return rows

    def start_contention(self, seeds: Iterable[int]) -> list[Row]:
        """Count the windows until the last slow one of a training in which contention starts in the middle.

        A window with settled knobs is slow if its steps take clearly longer than the median of a training that began
        under contention. A training that does not recover counts as infinite.
        """
        rows = []
        before = max(1, self.epochs // 3)
        for seed in seeds:
            for workload in CONTENTION_WORKLOADS:
                data, name = WORKLOADS[workload] * self.scale, f"{workload}, seed {seed}"
                reference = self._train(
                    f"{name}: contention from the start",
                    TrainingRequest(workload, KnobOptions("probe"), max(2, before), data, seed),
                    contention=True,
                )
                settled_s = reference.step_times(Phase.SETTLED)
                # A very short training settles no knobs.
                best_s = median(settled_s) if settled_s else min(window.step_s for window in reference.windows)
                request = TrainingRequest(
                    workload, KnobOptions("probe"), self.epochs, data, seed, contention_after=before
                )
                result = self._train(f"{name}: contention from the middle", request)
                windows = [w for record in result.records if record.epoch > before for w in record.windows]
                rows.append({
                    "workload": workload, "seed": seed, "best ms": best_s * 1e3, "windows": len(windows),
                    "windows until recovery": count_until_recovery(windows, best_s / MIN_SHARE_OF_SPEED),
                })  # fmt: skip
        table(rows)
        return rows

    def _profile(self, workload: str, config: dict[str, Any]) -> JobProfile:
        request = TrainingRequest(
            workload, KnobOptions("recall"), PROFILE_EPOCHS, PROFILE_DATA, config=Config(config)
        )  # fmt: skip
        result = self._train(f"profile of {workload} {config or ''}", request)
        return next(record.profile for record in result.records if record.profile is not None)

    def _train(self, name: str, request: TrainingRequest, *, contention: bool = False) -> TrainingResult:
        return self.journal.section(name, TrainingResult, partial(train, request, contention=contention))


def variant_rows(runs: Sequence[VariantRun]) -> list[Row]:
    """Return the figures of all runs, with the cost of probing against the defaults under the same conditions."""
    results = {(run.workload, run.seed, run.variant): run.result for run in runs}
    rows = []
    for run in runs:
        baseline = "defaults, contention" if VARIANTS[run.variant][1] else "defaults"
        cost = probing_cost(run.result, results[run.workload, run.seed, baseline])
        rows.append({**run.row, "probing cost": cost})
    return rows


def probing_cost(result: TrainingResult, baseline: TrainingResult) -> float:
    """Return the cost of probing as a share of the training time.

    The same epochs also take longer in the baseline, since the first epoch of any training does.
    """
    probed = {record.epoch for record in result.records if any(w.phase is Phase.PROBED for w in record.windows)}
    excess_s = _excess_s(result.epochs_s, probed) - max(0.0, _excess_s(baseline.epochs_s, probed))
    return excess_s / result.time_s


def _excess_s(epochs_s: Sequence[float], probed: set[int]) -> float:
    """Return how much longer the probed epochs took than the others."""
    others = [seconds for number, seconds in enumerate(epochs_s, start=1) if number not in probed]
    return sum(epochs_s[number - 1] - median(others) for number in probed) if probed and others else 0.0


def count_probed_beyond_contention(windows: Sequence[StepWindow]) -> int:
    """Return the number of probed windows in which another knob than those of contention differs from the recalled."""

    def other_knobs(window: StepWindow) -> str:
        return json.dumps(
            to_json({name: value for name, value in window.knobs.items() if name not in CONTENTION_KNOBS}),
            sort_keys=True,
        )

    recalled = {other_knobs(window) for window in windows if window.phase is Phase.RECALLED}
    return sum(window.phase is Phase.PROBED and other_knobs(window) not in recalled for window in windows)


def count_until_recovery(windows: Sequence[StepWindow], slow_s: float) -> float:
    """Return the number of the first window after which no settled one has slow steps.

    It is infinite if the last settled one is slow, or if there is none.
    """
    settled = [
        (number, window.step_s > slow_s) for number, window in enumerate(windows, 1) if window.phase is Phase.SETTLED
    ]
    if not settled or settled[-1][1]:
        return math.inf
    return 1 + max((number for number, is_slow in settled if is_slow), default=0)
