"""The communication algorithm of every target: what the job's limits say, for policies that do not weigh it.

Of a job that chooses it by measurement the reason says what it kept at that number of slots, since its speed there, and
so what it is given, is the speed under that. A ratio says how it compares: measured times go on changing.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import AUTO, EXACT, JobView, Plan, ProfilePoint, Snapshot, Target
from elastic_core.predict.speed.kept_exchange import kept_at, place_of


def with_exchanges(plan: Plan, snapshot: Snapshot) -> Plan:
    asking = {job.job_id: job for job in snapshot.jobs if job.limits.comm != EXACT}
    if not asking:
        return plan
    targets = {
        job_id: _with_exchange(target, asking[job_id]) if job_id in asking and target.num_slots else target
        for job_id, target in plan.targets.items()
    }
    return replace(plan, targets=targets)


def _with_exchange(target: Target, job: JobView) -> Target:
    if job.limits.comm != AUTO:
        return replace(target, comm=job.limits.comm, expected_comm="")
    kept, words = _kept_there(target, job)
    reason = "; ".join(filter(None, (target.reason, words)))
    return replace(target, comm=AUTO, expected_comm=kept or target.expected_comm, reason=reason)


def _kept_there(target: Target, job: JobView) -> tuple[str, str]:
    """The algorithm, and in words, e.g. "exchanging by powersgd there, a step 3.8 times as fast as by allreduce"; ""
    where nothing was kept."""
    here = [p for p in job.profile if p.num_slots > 1 and {p.type: p.num_slots} == dict(target.counts)]
    kept = kept_at(here)
    if not kept:
        return "", ""
    place = max(kept, key=lambda at: sum(point.count for point in here if place_of(point) == at))
    name, at_place = kept[place], [point for point in here if place_of(point) == place]
    own = max((point for point in at_place if point.comm == name), key=lambda point: point.count)
    words, exact = f"exchanging by {name} there", _exact_beside(own, at_place)
    if exact is None:
        return name, words
    return name, f"{words}, a step {exact.step_seconds / own.step_seconds:.2g} times as fast as by {EXACT}"


def _exact_beside(own: ProfilePoint, points: list[ProfilePoint]) -> ProfilePoint | None:
    if own.comm == EXACT:
        return None
    return next((p for p in points if p.comm == EXACT and p.global_batch == own.global_batch), None)
