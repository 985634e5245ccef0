"""One operator being tuned: what is known of its candidates, and whether more of them promise anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from onefold.kernels.bench import Bench, Outcome
from onefold.kernels.cold_filter import ColdFilter, Example
from onefold.kernels.cost_model import CostModel
from onefold.kernels.loess import line_of
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import strategy
from onefold.vocabulary.kernels import CandidateHistory, Operator, OperatorState, ScheduleCandidate

FIRST_GAIN = 0.5  # of an operator's time, which a first batch is expected to save
LATEST = 0.6  # how much the latest batch counts in what the next one is expected to gain
SPARE = 2  # other proposals for each candidate, where some will be dropped
HOPE = 0.08  # of a time that a batch may save, however little the last ones did; less with each batch
RECALLED = 8  # earlier candidates that count as one batch


class OperatorTuner:
    """Proposes, filters, measures, learns: a batch at a time."""

    def __init__(
        self,
        operator: Operator,
        module: Any,
        bench: Bench,
        search: str,
        model: CostModel | None,
        machine: str,
        seed: int = 0,
    ) -> None:
        self.operator, self.module, self.bench = operator, module, bench
        self.machine = machine
        self.space = ScheduleSpace(operator, module, bench.target, seed)
        self.seen: set[str] = set()
        self.search = strategy(search, self.space, model, self.seen)
        self.candidates: list[ScheduleCandidate] = []
        self.recalled = self.filtered = self.updates = 0
        self.best: tuple[float, Proposal] | None = None
        self.gain = FIRST_GAIN  # of its time, which the next batch is expected to save
        self.joules: float | None = None  # of the last batch
        self.is_used_up = self.suspended = False
        self._suggested: list[Proposal] = []
        self._heard: set[str] = set()  # candidates of others that were suggested

    @property
    def state(self) -> OperatorState:
        """Where it stands."""
        failed = sum(one.failure is not None for one in self.candidates)
        best = None if self.best is None else self.best[0]
        return OperatorState(
            self.operator, best, len(self.candidates), self.filtered, failed, self.suspended or self.is_used_up
        )

    @property
    def history(self) -> CandidateHistory:
        """All of its candidates with the line between hot and cold."""
        line = line_of([one.latency_s for one in self.candidates])
        return CandidateHistory(self.operator, tuple(self.candidates), tuple(line), self.recalled)

    def recall(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Takes over what was measured earlier under the same conditions."""
        known = [(one, made) for one in candidates if (made := self.space.remade(one.trace)) is not None]
        for at in range(0, len(known), RECALLED):
            before = None if self.best is None else self.best[0]
            for candidate, proposal in known[at : at + RECALLED]:
                self._keep(candidate, proposal)
            self.updates += 1
            self._expect(before)
        self.recalled = len(self.candidates)
        if known:
            self.search.tell([made for _, made in known], [one.latency_s for one, _ in known])

    def suggest(self, candidates: Iterable[ScheduleCandidate]) -> None:
        """What was fast elsewhere: for operators like this one, with other threads, on another device. The next batch
        begins with it."""
        new = {one.key: one for one in candidates if one.key not in self._heard}
        self._heard |= set(new)
        made = [self.space.remade(one.trace) or self.space.like(one.sketch, one.decisions) for one in new.values()]
        unknown = {one.key: one for one in made if one is not None and one.key not in self.seen}
        self._suggested = list(unknown.values())

    def batch(self, count: int, cold: ColdFilter | None, ledger: PhaseCosts) -> Iterator[ScheduleCandidate]:
        """Measures up to so many new candidates; each is handed out as soon as it is known, so that it can be kept."""
        before = None if self.best is None else self.best[0]
        began_j = ledger.spent.energy.joules
        with ledger.phase("search"):
            proposals = self._worth_measuring(count, cold)
        self.seen |= {one.key for one in proposals}
        if not proposals:
            self.is_used_up = True
            return
        with ledger.phase("build"):
            modules = [one.schedule.mod for one in proposals]
            if not self.bench.knows(self.operator.key):
                modules.append(self.module)
            built = self.bench.build(modules)
        if len(built) > len(proposals):
            with ledger.phase("run"):
                outcome = self.bench.take_as_right(self.operator.key, self.module, built.pop())
            ledger.add("build", outcome.build_j)
            ledger.add("run", outcome.run_j)
        found = []
        for proposal, one in zip(proposals, built):
            with ledger.phase("run"):
                outcome = self.bench.run(self.operator.key, self.module, one)
            ledger.add("build", outcome.build_j)
            ledger.add("run", outcome.run_j)
            candidate = self._candidate(proposal, outcome)
            self._keep(candidate, proposal)
            found.append(candidate)
            yield candidate
        with ledger.phase("update"):
            self.search.tell(proposals, [one.latency_s for one in found])
        self.updates += 1
        self._expect(before)
        ended_j = ledger.spent.energy.joules
        self.joules = None if began_j is None or ended_j is None else ended_j - began_j

    def _worth_measuring(self, count: int, cold: ColdFilter | None) -> list[Proposal]:
        """What was suggested, then what the search proposes without what the filter drops, which others replace."""
        suggested, self._suggested = self._suggested[:count], self._suggested[count:]
        self.seen |= {one.key for one in suggested}
        count -= len(suggested)
        return suggested + (self._proposed(count, cold) if count else [])

    def _proposed(self, count: int, cold: ColdFilter | None) -> list[Proposal]:
        if cold is None or not cold.is_ready:
            return self.search.propose(count)
        proposed = self.search.propose(count, spare=SPARE * count)
        return self._kept(proposed, count, cold) or proposed[:1]  # one that drops everything is wrong about something

    def _kept(self, proposals: Sequence[Proposal], count: int, cold: ColdFilter) -> list[Proposal]:
        """The first so many that the filter does not drop."""
        device = f"{self.bench.target.name} x{self.bench.target.cores}"
        examples = [Example(self.operator, device, self.machine, one.sketch, one.decisions) for one in proposals]
        kept: list[Proposal] = []
        for one, is_dropped in zip(proposals, cold.drops(examples, self.updates)):
            if len(kept) == count:
                break
            if is_dropped:
                self.filtered += 1
                self.seen.add(one.key)
            else:
                kept.append(one)
        return kept

    def _candidate(self, proposal: Proposal, outcome: Outcome) -> ScheduleCandidate:
        joules = [one for one in (outcome.build_j, outcome.run_j) if one is not None]
        return ScheduleCandidate(
            operator=self.operator.key,
            target=self.bench.target.name,
            machine=self.machine,
            threads=self.bench.target.cores,
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

    def _keep(self, candidate: ScheduleCandidate, proposal: Proposal) -> None:
        self.seen.add(proposal.key)
        self.candidates.append(candidate)
        latency = candidate.latency_s
        if latency is not None and (self.best is None or latency < self.best[0]):
            self.best = (latency, proposal)

    def _expect(self, before: float | None) -> None:
        if self.best is None:
            return
        saved = FIRST_GAIN if before is None else (before - self.best[0]) / before
        hope = HOPE / (1 + 0.5 * self.updates)
        self.gain = max(hope, LATEST * saved + (1 - LATEST) * self.gain * 0.5)


def of_weight(state: OperatorState, weight: int) -> OperatorState:
    """The same operator in another model, which runs it more often."""
    return replace(state, operator=replace(state.operator, weight=weight))
