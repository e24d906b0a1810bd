"""Tiresias (Gu et al., NSDI 2019): two queues by discretised attained service, no knowledge of how long a job is.

A job starts in the first queue; once it has attained 16 slot-hours it goes to the second for good, behind everybody
there. Inside a queue it is first come, first served, which keeps the number of preemptions low. Threshold and
placement are those of the simulator in Pollux's artefact (OSDI 2021), where the promotion against starvation is
switched off: a long job can wait behind a stream of short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import held_count, queue_of
from elastic_core.policy.baselines.rigid import serve

THRESHOLD = 16 * 3600.0  # slot-seconds
_MIN_WAKE = 1.0  # seconds: a job that is at the threshold by rounding only is looked at again this much later


class Tiresias:
    name: ClassVar[str] = "tiresias"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold  # slot-seconds

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs, threshold = queue_of(snapshot), self._threshold
        second = _second_queue(jobs, snapshot, threshold)
        rank = {job_id: place for place, job_id in enumerate(second)}
        ordered = sorted(jobs, key=lambda job: rank.get(job.job_id, -1))
        targets = serve(ordered, snapshot, lambda job: _describe_queue(job, second, threshold))
        running = [job for job in jobs if job.job_id not in rank and targets[job.job_id].num_slots]
        return Plan(
            policy=self.name,
            targets=targets,
            state={"second_queue": second},
            wake_at=_next_demotion(running, snapshot.now, threshold),
        )


def _second_queue(jobs: Sequence[JobView], snapshot: Snapshot, threshold: float) -> list[str]:
    """In the order of demotion: those of the last plan first, then who crossed the threshold since."""
    past_threshold = [job.job_id for job in jobs if job.attained_slot_seconds >= threshold]
    stored = snapshot.policy_state.get("second_queue", ())
    before = [job_id for job_id in stored if job_id in past_threshold] if isinstance(stored, (list, tuple)) else []
    return before + [job_id for job_id in past_threshold if job_id not in before]


def _describe_queue(job: JobView, second: Sequence[str], threshold: float) -> str:
    served = f"{'at least' if job.job_id in second else 'less than'} {threshold / 3600:g} slot-hours attained"
    return f"{'second' if job.job_id in second else 'first'} queue, {served}"


def _next_demotion(running: Sequence[JobView], now: float, threshold: float) -> float | None:
    """When the first of the running jobs would reach the threshold with what it holds now."""
    waits = [(threshold - job.attained_slot_seconds) / held_count(job) for job in running if job.allocation is not None]
    return now + max(min(waits), _MIN_WAKE) if waits else None
