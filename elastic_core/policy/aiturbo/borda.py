"""Who goes first among jobs of which only some can be predicted: feedback queues, two rankings, one Borda count.

AITurbo (HPDC 2021, section 4). All jobs are ranked by attained service, the least first; those whose progress can be
predicted also by the marginal gain of serving them: jobs completed per unit of service, which is the inverse of the
service that the job still needs. An unpredictable job has no second ranking and is given its first one twice; the
positions of the shorter ranking are stretched over the longer one, so that being ranked among few is no advantage.

Feedback queues come before the count: a job sinks by the service that it is known to need, its own where it can be
predicted, else what it has attained so far, which for the long-tailed lengths of training jobs is also the best
guess of what it still needs. Each queue serves `QUEUE_FACTOR` times as much as the one before it, so that a job is
demoted a few times in its life and two jobs do not overtake each other at every decision.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, log

FIRST_QUEUE = 3600.0  # units of service: four minutes of one worker on one GPU
QUEUE_FACTOR = 4.0
LAST_QUEUE = 9  # more than half a year of one worker on one GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One job as it is ranked. Both services in AITurbo's units."""

    job_id: str
    attained: float
    remaining: float | None  # None: cannot be predicted
    running: bool = False

    @property
    def queue(self) -> int:
        return queue_of_service(self.attained if self.remaining is None else self.remaining)


def queue_of_service(service: float) -> int:
    """The feedback queue of a job that needs this much service; 0 is served first."""
    if service < FIRST_QUEUE:
        return 0
    return LAST_QUEUE if service == inf else min(LAST_QUEUE, 1 + floor(log(service / FIRST_QUEUE, QUEUE_FACTOR)))


def next_queue_at(service: float) -> float:
    """The service at which a job that has attained this much is demoted."""
    queue = queue_of_service(service)
    return inf if queue == LAST_QUEUE else FIRST_QUEUE * QUEUE_FACTOR**queue


def positions(values: Mapping[str, float]) -> dict[str, float]:
    """Each one's place when ranked by its value, from 0 (least) to 1; those that tie share the middle of theirs."""
    ranked = sorted(values.values())
    return {
        name: (bisect_left(ranked, value) + bisect_right(ranked, value)) / (2 * len(ranked))
        for name, value in values.items()
    }


def scores(jobs: Sequence[Standing]) -> dict[str, float]:
    """The Borda count of each job, the sum of its two places: the lower, the sooner it is served.

    Attained service is compared by feedback queues, as in Tiresias: exact seconds would let two jobs take turns.
    """
    by_service = positions({job.job_id: queue_of_service(job.attained) for job in jobs})
    by_gain = positions({job.job_id: job.remaining for job in jobs if job.remaining is not None})
    return {job.job_id: by_service[job.job_id] + by_gain.get(job.job_id, by_service[job.job_id]) for job in jobs}


def in_service_order(jobs: Sequence[Standing]) -> list[Standing]:
    """By feedback queue, in it by Borda count, among equals in the order given: that of arrival.

    In a queue whoever runs goes on: the count says who is next, a queue before this one who is preempted. By the count
    alone a newcomer would push out a job of the same queue for having run, and lose what it had nearly done.
    """
    count = scores(jobs)
    return sorted(jobs, key=lambda job: (job.queue, not job.running, count[job.job_id]))
