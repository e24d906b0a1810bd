"""Gavel (Narayanan et al., OSDI 2020): shares of time on each type by a linear program, realised in rounds of 360 s.

x(j, k) is the share of time that job j, with the count and batch that its user asked for, spends on type k. Two of the
paper's objectives: `max_min`, the least normalised throughput of all jobs is as large as possible (section 4.1), and
`max_sum`, the steps a second of all jobs together, which is what the artefact of Sia (SOSP 2023) compares with.
Rounds (section 5): job and type pairs in order of x over the share of the type's time that the job has had so far;
who comes first gets its slots. Between rounds nobody is moved; slots that are given back are filled in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import held_count, held_type, queue_of, usual_batch
from elastic_core.policy.baselines.fixed import request_of
from elastic_core.policy.baselines.optimus import Knowledge, Predicted
from elastic_core.policy.baselines.rigid import free_nodes, on_emptiest_nodes
from elastic_core.policy.gavel.time_shares import PROGRAMS, Request
from elastic_core.policy.task_memory.type_speeds import LearntSpeeds, Ratios, learn
from elastic_core.predict.speed.throughput import Floats
from elastic_core.text import plural

ROUND = 360.0  # seconds


class Gavel:
    name: ClassVar[str] = "gavel"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})

    def __init__(self, objective: str = "max_min", knowledge: Knowledge | None = None) -> None:
        if objective not in PROGRAMS:
            raise ValueError(f"{objective!r} is none of {', '.join(PROGRAMS)}")
        self._objective, self._knowledge = objective, knowledge

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        pool, capacity = Pool.of(snapshot), snapshot.capacity()
        jobs = queue_of(snapshot)
        learnt = learn(snapshot.policy_state, jobs)
        requests = [self._request(job, capacity, pool, learnt) for job in jobs]
        clock = _Clock.of(snapshot, jobs, sorted(capacity))
        shares = PROGRAMS[self._objective](requests, sorted(capacity), capacity)
        order = clock.order(requests, shares)
        grants = _grant(order, requests, capacity, clock.in_force)
        targets = _targets(requests, grants, shares, snapshot)
        state = {"speeds": learnt, **clock.state(grants, snapshot.now)}
        return Plan(policy=self.name, targets=targets, state=state, wake_at=state["round_ends"])

    def _request(self, job: JobView, capacity: Mapping[str, int], pool: Pool, learnt: Ratios) -> Request:
        kinds, count = request_of(job, capacity)
        batch = usual_batch(job, count)
        return Request(job, count, batch, {kind: self._rate(job, kind, count, pool, batch, learnt) for kind in kinds})

    def _rate(self, job: JobView, kind: str, count: int, pool: Pool, batch: int, learnt: Ratios) -> float:
        if self._knowledge is not None:
            return 1.0 / self._knowledge.seconds(job, kind, [count], pool, batch)[0]
        seen = sorted({point.type for point in job.profile})
        projected = LearntSpeeds().ratio(job, kind, seen[0], learnt) if seen and kind not in seen else 1.0
        return projected / Predicted().seconds(job, kind, [count], pool, batch)[0]


@dataclass(slots=True)
class _Clock:
    """How long every job has had each type, and the round under way. Kept in the plan's state."""

    job_time: dict[str, dict[str, float]]
    type_time: dict[str, float]
    in_force: dict[str, tuple[str, int]]  # what the round under way gave; empty at the start of a round
    round_ends: float

    @staticmethod
    def of(snapshot: Snapshot, jobs: Sequence[JobView], types: Sequence[str]) -> _Clock:
        state = _stored_clock(snapshot.policy_state)
        before = state["job_time"]
        type_time = {kind: float(state["type_time"].get(kind, 0.0)) for kind in types}
        job_time = {}
        for job in jobs:
            job_time_before = before.get(job.job_id, {})
            job_time[job.job_id] = {kind: float(job_time_before.get(kind, ROUND / 2)) for kind in types}
            if job.job_id not in before:
                for kind in types:  # as if everybody had had half a round of each type already
                    type_time[kind] += ROUND / 2
        elapsed = max(snapshot.now - state["at"], 0.0) if state["at"] else 0.0
        for job in jobs:
            held = held_type(job)
            if held in type_time:
                job_time[job.job_id][held] += elapsed
                type_time[held] += elapsed
        in_round = snapshot.now < state["round_ends"] - 1e-6
        in_force = (
            {job_id: (str(kind), int(count)) for job_id, (kind, count) in state["round"].items()} if in_round else {}
        )
        return _Clock(job_time, type_time, in_force, state["round_ends"] if in_round else snapshot.now + ROUND)

    def order(self, requests: Sequence[Request], shares: Floats) -> list[tuple[int, str]]:
        """(rank of the job, type), first who is furthest behind its share."""
        types = sorted(self.type_time)
        order = []
        for rank, request in enumerate(requests):
            for column, kind in enumerate(types):
                if kind in request.rates:
                    share = float(shares[rank, column])
                    share_so_far = self.job_time[request.job.job_id][kind] / self.type_time[kind]
                    order.append((-share / share_so_far, -share, rank, kind))
        return [(rank, kind) for _, _, rank, kind in sorted(order)]

    def state(self, grants: Mapping[str, tuple[str, int]], now: float) -> dict[str, Any]:
        return {
            "job_time": self.job_time,
            "type_time": self.type_time,
            "round": {job_id: list(grant) for job_id, grant in grants.items()},
            "round_ends": self.round_ends,
            "at": now,
        }


def _stored_clock(state: Mapping[str, Any]) -> dict[str, Any]:
    """What another version of the platform, or another policy, wrote in another form is forgotten."""
    fresh: dict[str, Any] = {"job_time": {}, "type_time": {}, "round": {}, "round_ends": 0.0, "at": 0.0}
    if all(isinstance(state.get(name), type(value)) or name in ("round_ends", "at") for name, value in fresh.items()):
        return {name: state.get(name, value) for name, value in fresh.items()}
    return fresh


def _grant(
    order: Sequence[tuple[int, str]], requests: Sequence[Request], capacity: Mapping[str, int],
    in_force: Mapping[str, tuple[str, int]],
) -> dict[str, tuple[str, int]]:  # fmt: skip
    """First what the round under way gave, then in the order, whoever fits."""
    room = dict(capacity)
    grants: dict[str, tuple[str, int]] = {}
    for request in requests:
        kind, count = in_force.get(request.job.job_id, ("", 0))
        if kind in request.rates and count == request.count and count <= room[kind]:
            grants[request.job.job_id] = (kind, count)
            room[kind] -= count
    for rank, kind in order:
        request = requests[rank]
        if request.job.job_id not in grants and request.count <= room[kind]:
            grants[request.job.job_id] = (kind, request.count)
            room[kind] -= request.count
    return grants


def _targets(
    requests: Sequence[Request], grants: Mapping[str, tuple[str, int]], shares: Floats, snapshot: Snapshot
) -> dict[str, Target]:
    stays = {
        request.job.job_id
        for request in requests
        if grants.get(request.job.job_id) == (held_type(request.job), held_count(request.job))
    }
    moving = sorted(
        (request for request in requests if request.job.job_id in grants and request.job.job_id not in stays),
        key=lambda request: -request.count,
    )
    free = free_nodes(snapshot, [request.job for request in requests if request.job.job_id in stays])
    nodes_by_job = on_emptiest_nodes([(request.job, *grants[request.job.job_id]) for request in moving], free)
    types = sorted(snapshot.capacity())
    return {
        request.job.job_id: _target(
            request, grants.get(request.job.job_id), _describe_shares(types, row), nodes_by_job.get(request.job.job_id)
        )
        for request, row in zip(requests, shares, strict=True)
    }


def _describe_shares(types: Sequence[str], row: Floats) -> str:
    return ", ".join(f"{100 * share:.0f} % of {kind}" for kind, share in zip(types, row, strict=True)) or "nothing"


def _target(request: Request, grant: tuple[str, int] | None, share: str, nodes: Mapping[str, int] | None) -> Target:
    slots = plural(request.count, "slot")
    if not request.rates:
        return Target.nothing(f"waits: it asks for {slots}, and no type that it may use has as many")
    if grant is None:
        return Target.nothing(f"waits for {slots} this round; its share of time is {share}")
    kind, count = grant
    return Target(
        counts={kind: count},
        global_batch=request.batch,
        layout=request.job.limits.layout(count),
        reason=f"the {slots} that it asked for on {kind} this round; its share of time is {share}",
        nodes=nodes,
    )
