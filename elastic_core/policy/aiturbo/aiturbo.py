"""AITurbo (Zhao et al., HPDC 2021): one allocation for jobs that can be predicted and jobs that cannot.

Who is served first is decided by feedback queues and a Borda count (`policy.aiturbo.borda`), how much a job gets unit
by unit (`policy.aiturbo.marginal`), in one currency for CPUs and GPUs (`policy.parameter_servers.sizes`). A job counts
as predictable when the classifier gives it `remaining_work.CERTAIN` or more, its remaining work is known, and it or
another job of its task was measured (`policy.task_memory.task_profiles`); where no classifier was asked, declared work
is believed. Sizes are decided again every `INTERVAL`, and when a job comes, goes, changes its class or has other
limits, or the pool changes; a decision in between repeats the last one.

The batch is what the user asked for: AITurbo allots resources, it does not tune. Ours beside the paper: all units that
pay are taken in one decision instead of one an interval, and what is left idle goes to whom it helps most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from math import inf, isfinite
from random import Random
from typing import Any, ClassVar

from elastic_core.domain import JobView, Layout, Limits, Plan, Snapshot, Target
from elastic_core.policy.aiturbo.borda import Standing, in_service_order, next_queue_at
from elastic_core.policy.aiturbo.marginal import Claim, allot
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import queue_of, usual_batch, why_waiting
from elastic_core.policy.base.remaining_work import declaration_is_trusted, known_remaining
from elastic_core.policy.parameter_servers.served_sizes import ServedSizes, may_have_servers
from elastic_core.policy.parameter_servers.sizes import Size, Sizes, SlotSizes, service_rate
from elastic_core.policy.task_memory.task_profiles import TaskProfiles

INTERVAL = 60.0  # seconds between two reallocations
_MIN_WAKE = 5.0  # seconds: no demotion wakes us up earlier


class AITurbo:
    name: ClassVar[str] = "aiturbo"
    # A long job can wait behind a stream of short ones, as in Tiresias.
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        profiles = TaskProfiles.of(snapshot.policy_state, snapshot.jobs)
        jobs = [profiles.fill_in(job) for job in queue_of(snapshot)]
        attained = {job.job_id: self.attained_service(job, snapshot) for job in jobs}
        occasion = _occasion(jobs, snapshot)
        last = _last_decision(snapshot.policy_state, occasion, snapshot.now)
        if last is not None:
            targets, again_at = last["targets"], float(last["again_at"])
        else:
            targets, again_at = self._reallocate(jobs, attained, snapshot)
        return Plan(
            policy=self.name,
            targets={job_id: _target(stored_target) for job_id, stored_target in targets.items()},
            state={
                "service": {job_id: [service, snapshot.now] for job_id, service in attained.items()},
                "kin": profiles.to_state(),
                "last": {"occasion": occasion, "targets": targets, "again_at": again_at},
            },
            wake_at=again_at if jobs else None,
        )

    def _reallocate(
        self, jobs: Sequence[JobView], attained: Mapping[str, float], snapshot: Snapshot
    ) -> tuple[dict[str, Any], float]:
        capacity, pool = snapshot.capacity(), Pool.of(snapshot)
        claims = {
            job.job_id: Claim.of(
                self.sizes_of(job, capacity, pool), capacity,
                predictable=is_predictable(job), attained=attained[job.job_id],
            )
            for job in jobs
        }  # fmt: skip
        standings = [
            Standing(
                job_id=job_id,
                attained=attained[job_id],
                remaining=claim.remaining_service if claim.predictable else None,
                running=claim.held is not None,
            )
            for job_id, claim in claims.items()
        ]
        order = in_service_order(standings)
        grants = allot([claims[standing.job_id] for standing in order], capacity)
        targets: dict[str, Any] = {}
        for position, standing in enumerate(order, start=1):
            claim = claims[standing.job_id]
            size = grants.get(standing.job_id)
            standing_text = f"queue {standing.queue + 1}, place {position} of {len(order)}: {_why_there(standing)}"
            if size is None:
                why = f"{why_waiting(claim.sizes.job, capacity, len(grants))}; {standing_text}"
                targets[standing.job_id] = {"counts": {}, "reason": why}
            else:
                targets[standing.job_id] = _stored_target(claim, size, standing_text)
        return targets, _again_at(standings, grants, snapshot.now)

    def attained_service(self, job: JobView, snapshot: Snapshot) -> float:
        """Units of service so far: what the last decision knew, and since then the rate of what the job holds."""
        rate = self.held_rate(job)
        try:
            service, at = (float(value) for value in snapshot.policy_state["service"][job.job_id])
        except (KeyError, TypeError, ValueError):  # first seen: as if it had held slots of this kind always
            slots = max(1, job.allocation.num_slots if job.allocation is not None else 1)
            return job.attained_slot_seconds * (rate / slots if rate else service_rate({"": 1}))
        since = at if job.allocated_since is None else max(at, job.allocated_since)
        return service + rate * max(0.0, snapshot.now - since)

    def held_rate(self, job: JobView) -> float:
        """Units of service a second of what it holds now."""
        return 0.0 if job.allocation is None else service_rate(job.allocation.counts())

    def sizes_of(self, job: JobView, capacity: Mapping[str, int], pool: Pool) -> Sizes:
        """What the job can hold, and what leads from there to more."""
        return ServedSizes(job, capacity, pool) if may_have_servers(job) else SlotSizes(job, capacity, pool)


def is_predictable(job: JobView) -> bool:
    """The classifier's word where there is one; never without a known amount of work and a measured speed.

    Without that word declared work is believed, and a loss curve is not.
    """
    measured = job.throughput is not None or any(point.roles for point in job.profile)
    classified = job.predictable is not None or job.total_samples is not None
    return measured and classified and declaration_is_trusted(job) and isfinite(known_remaining(job))


def _occasion(jobs: Sequence[JobView], snapshot: Snapshot) -> dict[str, Any]:
    """What makes a decision anew before the interval is over, in plain JSON. A target of before is no answer to limits
    that have changed since: it may break them."""
    classes = {job.job_id: is_predictable(job) for job in jobs}
    limits = {job.job_id: _in_short(job.limits) for job in snapshot.jobs}
    return {
        "capacity": dict(sorted(snapshot.capacity().items())), "jobs": dict(sorted(classes.items())),
        "limits": dict(sorted(limits.items())),
    }  # fmt: skip


@lru_cache(maxsize=4096)
def _in_short(limits: Limits) -> str:
    """What a target has to keep of them: whole it may be thousands of counts of each job."""
    kept = limits.slot_counts, limits.types, limits.min_batch, limits.max_batch
    return sha256(repr(kept).encode()).hexdigest()[:16]


def _last_decision(state: Mapping[str, Any], occasion: Mapping[str, Any], now: float) -> Mapping[str, Any] | None:
    """The decision in force, while it holds. One that another version of the platform wrote is forgotten."""
    last = state.get("last")
    try:
        return last if last["occasion"] == occasion and now < last["again_at"] else None  # type: ignore[index]
    except (KeyError, TypeError):
        return None


def _again_at(standings: Sequence[Standing], grants: Mapping[str, Size], now: float) -> float:
    """The end of the interval, or the first demotion of a running job if that is earlier."""
    demotions = [
        (next_queue_at(standing.attained) - standing.attained) / grants[standing.job_id].service_rate
        for standing in standings
        if standing.remaining is None and standing.job_id in grants
    ]
    return now + min(INTERVAL, max(_MIN_WAKE, min(demotions, default=inf)))


def _stored_target(claim: Claim, size: Size, standing_text: str) -> dict[str, Any]:
    """A target in plain JSON, as it is kept in the plan's state."""
    return {
        "counts": dict(size.counts),
        "roles": dict(size.roles),
        "on_slots": may_have_servers(claim.sizes.job),
        "batch": usual_batch(claim.sizes.job, size.ranks),
        "reason": f"{claim.explain(size)}; {standing_text}",
    }


def _target(stored_target: Mapping[str, Any]) -> Target:
    if not stored_target["counts"]:
        return Target.nothing(stored_target["reason"])
    roles = tuple(sorted(stored_target["roles"].items()))
    if stored_target.get("on_slots") and roles:  # each process on a slot of its own: the layout says it
        processes = dict(roles)
        return Target(
            counts=stored_target["counts"],
            global_batch=stored_target["batch"],
            layout=Layout(data=processes["worker"], servers=processes["server"]),
            reason=stored_target["reason"],
        )
    ranks = stored_target["roles"]["worker"] if roles else sum(stored_target["counts"].values())
    return Target(
        counts=stored_target["counts"],
        global_batch=stored_target["batch"],
        layout=Layout(data=ranks),
        reason=stored_target["reason"],
        roles=roles,
    )


def _why_there(standing: Standing) -> str:
    """Without the figures: they change with every second that the job runs, and this is read for longer."""
    if standing.remaining is None:
        return "placed by what it attained, since what it still needs cannot be predicted"
    return "placed by what it still needs and what it attained"
