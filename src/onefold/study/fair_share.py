"""Start-time fair queueing: choose the job of a queue that starts next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedJob:
    """A job that was started: what it has cost its tenant so far, in core-seconds."""

    tenant: str
    cost: float


def next_job(waiting: Sequence[str], served: Sequence[ServedJob], shares: Mapping[str, float]) -> int:
    """Return the position in `waiting` of the job that starts next.

    Without shares it is the first one. With shares it is start-time fair queueing (Goyal et al. 1996): a job's start
    tag is the finish tag of its tenant's job before it, or the start tag of the job that was started last if that is
    larger; its finish tag is its start tag plus its cost over its tenant's share. The job with the smallest start tag
    is next, the first one among equals. So tenants who always have jobs waiting get cost in proportion to their
    shares, a tenant who had none for a while gains nothing by that, and nobody starves.

    Args:
        waiting: The tenants of the waiting jobs, in order of submission.
        served: The jobs that were started, in that order.
        shares: The share of each tenant; those that are missing have 1.
    """
    if not shares:
        return 0
    virtual_time, finish_tags = 0.0, dict[str, float]()
    for job in served:
        virtual_time = max(virtual_time, finish_tags.get(job.tenant, 0.0))
        finish_tags[job.tenant] = virtual_time + job.cost / shares.get(job.tenant, 1.0)
    start_tags = [max(virtual_time, finish_tags.get(tenant, 0.0)) for tenant in waiting]
    return start_tags.index(min(start_tags))
