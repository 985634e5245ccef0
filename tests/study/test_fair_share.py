"""The order of jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onefold.study.fair_share import ServedJob, next_job

COSTS = st.floats(0.1, 10.0)
TENANTS = st.sampled_from("abc")
SHARES = st.dictionaries(TENANTS, st.floats(0.25, 4.0), min_size=1)
JOBS = st.builds(ServedJob, TENANTS, COSTS)
WAITING = st.lists(TENANTS, min_size=1, max_size=8)


@given(WAITING, st.lists(JOBS, max_size=8))
def test_without_shares_first_come_is_first_served(waiting: list[str], served: list[ServedJob]) -> None:
    assert next_job(waiting, served, {}) == 0


@given(WAITING, st.lists(JOBS, max_size=8), SHARES)
def test_jobs_of_one_tenant_keep_their_order(
    waiting: list[str], served: list[ServedJob], shares: dict[str, float]
) -> None:
    position = next_job(waiting, served, shares)
    assert waiting[position] not in waiting[:position]


def ran_from(waiting: list[ServedJob], shares: dict[str, float]) -> list[ServedJob]:
    """Run waiting jobs one at a time until one tenant has none left; return those that ran."""
    waiting, ran, tenants = list(waiting), list[ServedJob](), {job.tenant for job in waiting}
    while {job.tenant for job in waiting} == tenants:
        ran.append(waiting.pop(next_job([job.tenant for job in waiting], ran, shares)))
    return ran


@given(st.lists(JOBS, min_size=1, max_size=60), SHARES)
def test_tenants_who_always_wait_get_cost_in_proportion_to_their_shares(
    waiting: list[ServedJob], shares: dict[str, float]
) -> None:
    """The bound of start-time fair queueing: one job of each."""
    ran = ran_from(waiting, shares)
    largest = {name: max((job.cost for job in waiting if job.tenant == name), default=0.0) for name in "abc"}
    work = {name: sum(job.cost for job in ran if job.tenant == name) / shares.get(name, 1.0) for name in "abc"}
    present = {job.tenant for job in waiting}
    for one in present:
        for other in present:
            bound = sum(largest[name] / shares.get(name, 1.0) for name in (one, other))
            assert abs(work[one] - work[other]) <= bound + 1e-6


@given(st.integers(1, 30), st.floats(0.25, 4.0))
def test_a_tenant_who_was_away_gains_nothing_by_that(jobs: int, cost: float) -> None:
    """Beside a newcomer, who has served nothing, the other tenant waits for one job at most."""
    served, shares = [ServedJob("a", cost)] * jobs, {"a": 1.0, "b": 1.0}
    order = []
    for _ in range(6):
        tenant = "ab"[next_job(["a", "b"], served, shares)]
        order.append(tenant)
        served = [*served, ServedJob(tenant, cost)]
    assert sorted(order) == ["a"] * 3 + ["b"] * 3


@given(st.integers(2, 12), SHARES)
def test_nobody_starves(count: int, shares: dict[str, float]) -> None:
    waiting = ["a"] * count + ["b"]
    served = list[ServedJob]()
    while "b" in waiting:
        served.append(ServedJob(waiting.pop(next_job(waiting, served, shares)), 1.0))
    started = [job.tenant for job in served]
    ratio = shares.get("a", 1.0) / shares.get("b", 1.0)
    assert len(started) - 1 <= max(1.0, ratio) + 1
