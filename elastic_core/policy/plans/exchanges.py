"""The communication algorithm of every target: what the job's limits say, for policies that do not weigh it."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import EXACT, Plan, Snapshot


def with_exchanges(plan: Plan, snapshot: Snapshot) -> Plan:
    asked = {job.job_id: job.limits.comm for job in snapshot.jobs if job.limits.comm != EXACT}
    if not asked:
        return plan
    targets = {
        job_id: replace(target, comm=asked[job_id]) if job_id in asked and target.num_slots else target
        for job_id, target in plan.targets.items()
    }
    return replace(plan, targets=targets)
