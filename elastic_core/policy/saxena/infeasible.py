"""A set of jobs that cannot all run: the rule of Saxena et al. 2020 that turns the newest away.

The other rule, to let them wait, is what every policy here does by the queue's order (`policy.base.queue`). Who was
turned away once stays away: the policy's state says so, until the job has left the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_core.domain import JobView, Target
from elastic_core.policy.base.queue import admit, usable_types
from elastic_core.policy.saxena import reasons


def drop_newest(
    queue: Sequence[JobView], capacity: Mapping[str, int], state: Mapping[str, Any]
) -> tuple[list[JobView], dict[str, Target]]:
    """(the jobs that can all run with their smallest counts, oldest first; targets of nothing for the others)."""
    dropped = set(state.get("turned_away", ())) & {job.job_id for job in queue}
    dropped |= {job.job_id for job in queue if not usable_types(job, capacity)}
    newest_last = sorted(queue, key=lambda job: (job.submitted_at, job.job_id))
    feasible = [job for job in newest_last if job.job_id not in dropped]
    while admit(feasible, capacity).waiting:
        dropped.add(feasible.pop().job_id)
    return feasible, {
        job.job_id: Target.nothing(reasons.turned_away(job)) for job in newest_last if job.job_id in dropped
    }
