"""MetaSchedule's own search, asked for one batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onefold.kernels.cost_model import CostModel, results_of
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies.strategy import TRIES, drawn, unseen
from onefold.kernels.toolchain import schedules

POPULATION, FRESH, GENERATIONS = 64, 16, 2  # of 192 in 3 generations, searching took three times as long as building
GENERATION = 16  # candidates of one, of which some are measured
MANY = 10**6  # candidates, which it is told it may measure: others decide when to stop


class MetaScheduleEvolution:
    """Generations of mutated candidates, picked by the cost model."""

    def __init__(
        self,
        space: ScheduleSpace,
        model: CostModel,
        seen: set[str],
        population: int = POPULATION,
        fresh: int = FRESH,
        generations: int = GENERATIONS,
    ) -> None:
        self.space, self.model, self.seen = space, model, seen
        tuner = schedules()
        self._database: Any = tuner.database.MemoryDatabase()
        self._search: Any = tuner.search_strategy.EvolutionarySearch(
            population_size=population, init_min_unmeasured=fresh, genetic_num_iters=generations
        )
        # One thread: with more of them, what it proposes would follow from which was faster.
        self._context: Any = tuner.TuneContext(
            space.module, target=space.target.opened(), space_generator="post-order-apply",
            search_strategy=self._search, task_name=space.operator.name, rand_state=space.draw(), num_threads=1,
        )  # fmt: skip
        self._is_open = self._waiting = self._knows = False

    def propose(self, count: int, spare: int = 0) -> list[Proposal]:
        """The best of a generation."""
        if not self.space.sketches:
            return []
        if not (
            self._knows or self.model.is_ready
        ):  # a first generation is picked by chance anyway, at the price of a whole one
            return unseen(drawn(self.space.random, TRIES * (count + spare)), count + spare, self.seen)
        if not self._is_open:
            self._context.pre_tuning(MANY, GENERATION, self.space.sketches, self._database, self.model.model)
            self._is_open = True
        found = self._context.generate_measure_candidates()
        self._waiting = found is not None
        made = [self.space.proposal(one.sch) for one in found or ()]
        kept = unseen(iter(made), count + spare, self.seen)
        if len(kept) < count:  # it does not know what others have seen
            taken = self.seen | {one.key for one in kept}
            kept += unseen(drawn(self.space.random, TRIES * (count - len(kept))), count - len(kept), taken)
        return kept

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float | None]) -> None:
        """Keeps what was measured for the next generations, and lets the model learn."""
        tuner = schedules()
        workload = self._database.commit_workload(self.space.module)
        for one, latency in zip(proposals, latencies):
            if latency is not None:
                record = tuner.database.TuningRecord(
                    one.schedule.trace, workload, [latency], self.space.target.opened(), one.measurable.args_info
                )
                self._database.commit_tuning_record(record)
                self._knows = True
        if self._waiting:
            measurable = [one.measurable for one in proposals]
            self._context.search_strategy.notify_runner_results(measurable, results_of(latencies))
            self._waiting = False
        self.model.learn(self.space, proposals, latencies)
