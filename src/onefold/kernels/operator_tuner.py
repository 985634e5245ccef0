"""Tunes one operator: proposes, filters and measures candidates, and estimates the gain of the next batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from onefold.kernels.candidate_runner import CandidateRunner, MeasureOutcome
from onefold.kernels.cold_filter import CandidateFeatures, ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.loess import fit_latencies
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import create_strategy
from onefold.vocabulary.kernels import CandidateHistory, Operator, OperatorState, ScheduleCandidate

FIRST_GAIN = 0.5  # relative gain expected of the first batch
LATEST_WEIGHT = 0.6  # of the latest batch in the moving average of the gain
SPARE_PROPOSALS = 2  # extra proposals per candidate if the cold filter will drop some
MIN_GAIN = 0.08  # relative gain that a batch may always bring; decreases with the number of batches
RECALLED_BATCH = 8  # recalled candidates that count as one batch


class OperatorTuner:
    """Measures candidates of one operator, a batch at a time.

    Args:
        operator: The operator to tune.
        module: Its TIR module.
        runner: Builds and times candidates.
        strategy: Name of the search strategy.
        model: The cost model, if the strategy needs one.
        machine: Name of the machine that measures, for the records.
        seed: Seed of the search.
    """

    def __init__(
        self,
        operator: Operator,
        module: Any,
        runner: CandidateRunner,
        strategy: str,
        model: CostModel | None,
        machine: str,
        seed: int = 0,
    ) -> None:
        self.operator, self.module, self.runner = operator, module, runner
        self.machine = machine
        self.space = ScheduleSpace(operator, module, runner.target, seed)
        self.seen: set[str] = set()
        self.strategy = create_strategy(strategy, self.space, model, self.seen)
        self.candidates: list[ScheduleCandidate] = []
        self.recalled = self.filtered = self.updates = 0
        self.best: tuple[float, Proposal] | None = None
        self.expected_gain = FIRST_GAIN  # relative to its latency, of the next batch
        self.batch_joules: float | None = None  # energy of the last batch
        self.is_exhausted = self.suspended = False
        self._suggested: list[Proposal] = []
        self._suggested_keys: set[str] = set()

    @property
    def state(self) -> OperatorState:
        """Return the current tuning state."""
        failed = sum(candidate.failure is not None for candidate in self.candidates)
        best_s = None if self.best is None else self.best[0]
        is_suspended = self.suspended or self.is_exhausted
        return OperatorState(self.operator, best_s, len(self.candidates), self.filtered, failed, is_suspended)

    @property
    def history(self) -> CandidateHistory:
        """Return all candidates with the LOESS fit of their latencies."""
        line = fit_latencies([candidate.latency_s for candidate in self.candidates])
        return CandidateHistory(self.operator, tuple(self.candidates), tuple(line), self.recalled)

    def recall(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Take over candidates that were measured earlier under the same conditions."""
        replayed = [
            (candidate, proposal)
            for candidate in candidates
            if (proposal := self.space.replay(candidate.trace)) is not None
        ]
        for start in range(0, len(replayed), RECALLED_BATCH):
            before_s = None if self.best is None else self.best[0]
            for candidate, proposal in replayed[start : start + RECALLED_BATCH]:
                self._record(candidate, proposal)
            self.updates += 1
            self._update_expected_gain(before_s)
        self.recalled = len(self.candidates)
        if replayed:
            self.strategy.tell(
                [proposal for _, proposal in replayed], [candidate.latency_s for candidate, _ in replayed]
            )

    def suggest(self, candidates: Iterable[ScheduleCandidate]) -> None:
        """Start the next batch with schedules that were fast for similar operators, other threads or devices."""
        new = {candidate.key: candidate for candidate in candidates if candidate.key not in self._suggested_keys}
        self._suggested_keys |= set(new)
        proposals = [
            self.space.replay(candidate.trace) or self.space.apply_decisions(candidate.sketch, candidate.decisions)
            for candidate in new.values()
        ]
        unseen = {
            proposal.key: proposal for proposal in proposals if proposal is not None and proposal.key not in self.seen
        }
        self._suggested = list(unseen.values())

    def measure_batch(
        self,
        count: int,
        cold_filter: ColdFilter | None,
        costs: PhaseCosts,
        affordable: Callable[[], float] = lambda: math.inf,
    ) -> Iterator[ScheduleCandidate]:
        """Measure up to `count` new candidates and yield each as soon as it is measured, so that it can be stored.

        `affordable` returns how many candidates may be built before it is called again; it ends the batch with 0.
        """
        before_s = None if self.best is None else self.best[0]
        before_j = costs.total.energy.joules
        with costs.phase("search"):
            proposals = self._propose(count, cold_filter)
        if not proposals:
            self.is_exhausted = True
            return
        measured: list[ScheduleCandidate] = []
        while (left := proposals[len(measured) :]) and (size := affordable()) >= 1:
            for candidate in self._measure(left[: int(min(size, len(left)))], costs):
                measured.append(candidate)
                yield candidate
        if not measured:
            return
        with costs.phase("update"):
            self.strategy.tell(proposals[: len(measured)], [candidate.latency_s for candidate in measured])
        self.updates += 1
        self._update_expected_gain(before_s)
        after_j = costs.total.energy.joules
        self.batch_joules = None if before_j is None or after_j is None else after_j - before_j

    def _measure(self, proposals: Sequence[Proposal], costs: PhaseCosts) -> Iterator[ScheduleCandidate]:
        """Build candidates in parallel, after the operator itself if it has no reference output, and time each."""
        with costs.phase("build"):
            modules = [proposal.schedule.mod for proposal in proposals]
            if not self.runner.has_reference(self.operator.key):
                modules.append(self.module)
            built = self.runner.build(modules)
        for result in built:
            costs.add("build", result.reply.joules)
        if len(built) > len(proposals):
            with costs.phase("run"):
                outcome = self.runner.measure_reference(self.operator.key, self.module, built.pop())
            costs.add("run", outcome.run_j)
        for proposal, result in zip(proposals, built):
            with costs.phase("run"):
                outcome = self.runner.measure(self.operator.key, self.module, result)
            costs.add("run", outcome.run_j)
            candidate = self._candidate(proposal, outcome)
            self._record(candidate, proposal)
            yield candidate

    def _propose(self, count: int, cold_filter: ColdFilter | None) -> list[Proposal]:
        """Return the suggested schedules, then what the strategy proposes and the cold filter keeps."""
        suggested, self._suggested = self._suggested[:count], self._suggested[count:]
        self.seen |= {proposal.key for proposal in suggested}
        count -= len(suggested)
        return suggested + (self._search(count, cold_filter) if count else [])

    def _search(self, count: int, cold_filter: ColdFilter | None) -> list[Proposal]:
        if cold_filter is None or not cold_filter.is_ready:
            return self.strategy.propose(count)
        proposals = self.strategy.propose(count, spare=SPARE_PROPOSALS * count)
        return self._filter(proposals, count, cold_filter) or proposals[:1]  # never drop everything

    def _filter(self, proposals: Sequence[Proposal], count: int, cold_filter: ColdFilter) -> list[Proposal]:
        """Return the first `count` proposals that the filter does not drop."""
        device = f"{self.runner.target.name} x{self.runner.target.cores}"
        features = [
            CandidateFeatures(self.operator, device, self.machine, proposal.sketch, proposal.decisions)
            for proposal in proposals
        ]
        kept: list[Proposal] = []
        for proposal, is_dropped in zip(proposals, cold_filter.select_dropped(features, self.updates)):
            if len(kept) == count:
                break
            if is_dropped:
                self.filtered += 1
                self.seen.add(proposal.key)
            else:
                kept.append(proposal)
        return kept

    def _candidate(self, proposal: Proposal, outcome: MeasureOutcome) -> ScheduleCandidate:
        joules = [value for value in (outcome.build_j, outcome.run_j) if value is not None]
        return ScheduleCandidate(
            operator=self.operator.key,
            target=self.runner.target.name,
            machine=self.machine,
            threads=self.runner.target.cores,
            implementation=proposal.key,
            sketch=proposal.sketch,
            decisions=proposal.decisions,
            trace=proposal.trace,
            latency_s=outcome.latency_s,
            failure=outcome.failure,
            build_s=outcome.build_s,
            run_s=outcome.run_s,
            joules=sum(joules) if joules else None,
        )

    def _record(self, candidate: ScheduleCandidate, proposal: Proposal) -> None:
        self.seen.add(proposal.key)
        self.candidates.append(candidate)
        latency_s = candidate.latency_s
        if latency_s is not None and (self.best is None or latency_s < self.best[0]):
            self.best = (latency_s, proposal)

    def _update_expected_gain(self, before_s: float | None) -> None:
        if self.best is None:
            return
        gain = FIRST_GAIN if before_s is None else (before_s - self.best[0]) / before_s
        min_gain = MIN_GAIN / (1 + 0.5 * self.updates)
        self.expected_gain = max(min_gain, LATEST_WEIGHT * gain + (1 - LATEST_WEIGHT) * self.expected_gain * 0.5)


def with_weight(state: OperatorState, weight: int) -> OperatorState:
    """Return the state of the same operator in a model that runs it `weight` times."""
    return replace(state, operator=replace(state.operator, weight=weight))
