"""First come, first served, with the requested counts; smaller jobs fill the gaps and give way. The plainest rival.

Unlike `fixed` it preempts: a job that fits into a gap in front of a larger one runs there until the larger one fits.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from elastic_core.domain import Plan, Snapshot
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import queue_of
from elastic_core.policy.baselines.rigid import serve


class Fifo:
    name: ClassVar[str] = "fifo"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.NO_STARVATION, Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs = queue_of(snapshot)
        place = {job.job_id: number for number, job in enumerate(jobs, start=1)}
        targets = serve(jobs, snapshot, lambda job: f"number {place[job.job_id]} of {len(jobs)} in order of arrival")
        return Plan(policy=self.name, targets=targets)
