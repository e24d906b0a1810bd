"""BFTrainer (Liu, Kettimuthu, Papka and Foster 2021, arXiv 2106.12091): elastic jobs on nodes that come and go.

At every event one integer program (`forward_program`) decides all jobs: objective a second over the `forward` seconds
to come, less what the resizes lose. The objective of a job is its work a second, or, by default, its scaling
efficiency: work a second over that of one slot, so that small models do not count more. Batches follow the slots
(`policy.base.weak_scaling`). The last in the queue counts a hundredth less than the first, so that of jobs alike the
first goes first. Nodes that are taken away take their jobs' slots along: such a job holds nothing, and has
nothing to lose. How much work is left is not asked: nothing keeps a job that scales badly from waiting. What the paper
leaves open: decision 0055.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, Literal

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import as_they_stand, held_count, held_type, in_order, usable_types, why_waiting
from elastic_core.policy.base.weak_scaling import WeakScaling
from elastic_core.policy.bftrainer.count_pieces import pieces_of
from elastic_core.policy.bftrainer.forward_program import Grant, Request, solve
from elastic_core.text import plural

FORWARD = 120.0  # seconds
_ORDER = 0.01  # what the last in the queue counts less than the first
Objective = Literal["efficiency", "throughput"]


class BFTrainer:
    name: ClassVar[str] = "bftrainer"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.BOUNDED_RESIZES})

    def __init__(self, forward: float = FORWARD, objective: Objective = "efficiency",
                 down: float = 1.0) -> None:  # fmt: skip
        """`forward`: T, seconds. `down`: what a resize to fewer slots costs, as part of one to more."""
        self._forward, self._objective, self._down = forward, objective, down

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs, capacity, pool = in_order(as_they_stand(snapshot)), snapshot.capacity(), Pool.of(snapshot)
        scalings = [WeakScaling.of(job) for job in jobs]
        weights = [1.0 - _ORDER * rank / len(jobs) for rank in range(len(jobs))]
        requests = [
            self._request(scaling, weight, capacity, pool) for scaling, weight in zip(scalings, weights, strict=True)
        ]
        answer = solve(requests, capacity, self._forward)
        running = sum(grant is not None for grant in answer.grants)
        targets = {
            job.job_id: Target.nothing(why_waiting(job, capacity, running))
            if grant is None
            else _target(scaling, request, grant, self._forward)
            for job, scaling, request, grant in zip(jobs, scalings, requests, answer.grants, strict=True)
        }
        notes = () if answer.proven else ("the solver stopped at its limit: the best allocation so far",)
        return Plan(policy=self.name, targets=targets, notes=notes)

    def _request(self, scaling: WeakScaling, weight: float, capacity: Mapping[str, int], pool: Pool) -> Request:
        job = scaling.job
        speeds = {kind: _speeds(scaling, kind, pool) for kind in usable_types(job, capacity)}
        unit = 1.0
        if self._objective == "efficiency" and speeds:
            unit = min(of_kind[min(of_kind)] / min(of_kind) for of_kind in speeds.values())
        unit /= weight
        held: Grant = None
        kind, count = held_type(job), held_count(job)
        if kind is not None and count in speeds.get(kind, {}):
            held = (kind, count)
        speed = speeds[held[0]][held[1]] / unit if held is not None else 0.0
        lost_up, lost_down = job.resize_seconds * speed, self._down * job.resize_seconds * speed
        pieces = [
            piece
            for of_kind, by_count in speeds.items()
            for piece in pieces_of(
                of_kind,
                {number: value / unit for number, value in by_count.items()},
                held[1] if held is not None and held[0] == of_kind else None,
                lost_up,
                lost_down,
            )
        ]
        return Request(tuple(pieces), held, lost_down)


def _speeds(scaling: WeakScaling, kind: str, pool: Pool) -> dict[int, float]:
    """Work a second by count, of all counts that the type has slots for."""
    counts: Sequence[int] = [count for count in scaling.counts if count <= pool.capacity(kind)]
    batches = [scaling.batch(count) for count in counts]
    return dict(zip(counts, scaling.speeds(kind, counts, pool, batches).tolist(), strict=True))


def _target(scaling: WeakScaling, request: Request, grant: tuple[str, int], forward: float) -> Target:
    (kind, count), job = grant, scaling.job
    gain = request.value(grant, forward) - request.value(None, forward)
    return Target(
        counts={kind: count},
        global_batch=scaling.batch(count),
        layout=job.limits.layout(count),
        reason=f"{_change(job, kind, count)}: worth {gain:.4g} over stopping, as far as it looks ahead",
    )


def _change(job: JobView, kind: str, count: int) -> str:
    slots = f"{plural(count, 'slot')} of {kind}"
    if held_type(job) is None:
        return slots
    if (held_type(job), held_count(job)) == (kind, count):
        return f"{slots} as before"
    return f"{slots} instead of {held_count(job)} of {held_type(job)}, the resize included"
