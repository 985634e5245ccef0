"""MetaSchedule's EvolutionarySearch, one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onefold.kernels.cost_model import CostModel, runner_results
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import SAMPLES_PER_PROPOSAL, repeat, unseen
from onefold.kernels.toolchain import meta_schedule

# A population of 192 over 3 generations made the search take three times as long as building.
POPULATION_SIZE, MIN_UNMEASURED, GENERATIONS = 64, 16, 2
GENERATION_SIZE = 16  # candidates that it returns, of which some are measured
MAX_TRIALS = 10**6  # more than any budget: others decide when to stop


class MetaScheduleEvolution:
    """Generations of mutated schedules, ranked by the cost model; random samples until something was measured."""

    def __init__(
        self,
        space: ScheduleSpace,
        model: CostModel,
        seen: set[str],
        population_size: int = POPULATION_SIZE,
        min_unmeasured: int = MIN_UNMEASURED,
        generations: int = GENERATIONS,
    ) -> None:
        self.space, self.model, self.seen = space, model, seen
        tuner = meta_schedule()
        self._database: Any = tuner.database.MemoryDatabase()
        self._search: Any = tuner.search_strategy.EvolutionarySearch(
            population_size=population_size, init_min_unmeasured=min_unmeasured, genetic_num_iters=generations
        )
        # One thread: with more, the proposals would depend on which thread is faster.
        self._context: Any = tuner.TuneContext(
            space.module, target=space.target.tvm_target(), space_generator="post-order-apply",
            search_strategy=self._search, task_name=space.operator.name, rand_state=space.draw_seed(), num_threads=1,
        )  # fmt: skip
        self._is_started = self._awaits_results = self._has_records = False

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """Return the best of a generation."""
        if not self.space.sketches:
            return []
        if not (self._has_records or self.model.is_ready):  # its first generation is random too, but far slower
            return self._sample(count + spare, self.seen)
        if not self._is_started:
            self._context.pre_tuning(MAX_TRIALS, GENERATION_SIZE, self.space.sketches, self._database, self.model.model)
            self._is_started = True
        candidates = self._context.generate_measure_candidates()
        self._awaits_results = candidates is not None
        generation = [self.space.proposal(candidate.sch) for candidate in candidates or ()]
        proposals = unseen(iter(generation), count + spare, self.seen)
        if len(proposals) < count:  # it does not know what others have seen
            taken = self.seen | {proposal.key for proposal in proposals}
            proposals += self._sample(count - len(proposals), taken)
        return proposals

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Record the latencies for the next generations, and update the cost model."""
        tuner = meta_schedule()
        workload = self._database.commit_workload(self.space.module)
        for proposal, latency in zip(proposals, latencies):
            if latency is not None:
                record = tuner.database.TuningRecord(
                    proposal.schedule.trace, workload, [latency], self.space.target.tvm_target(),
                    proposal.measure_candidate.args_info,
                )  # fmt: skip
                self._database.commit_tuning_record(record)
                self._has_records = True
        if self._awaits_results:
            measured = [proposal.measure_candidate for proposal in proposals]
            self._context.search_strategy.notify_runner_results(measured, runner_results(latencies))
            self._awaits_results = False
        self.model.update(self.space, proposals, latencies)

    def _sample(self, count: int, seen: set[str]) -> list[Proposal]:
        return unseen(repeat(self.space.sample, SAMPLES_PER_PROPOSAL * count), count, seen)
