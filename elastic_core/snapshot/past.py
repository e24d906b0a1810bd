"""From a job's leases to what a decision may know of them: what it held, how often it was moved, what a move costs.

A *start* is a lease that new processes begin, a *move* one on other slots or in another layout than the lease before,
whichever way that went. A lease that goes on as the one before it, at another batch or not, is neither.

What a resize costs is the time without a step around a move. In place: from the last step to the first, as the trainer
told with its checkpoints. By new processes: from the last step (or the commit) until the old ones are gone and the next
segment has asked for slots, and from the grant until the first step (or heartbeat); waiting for slots is no cost of the
resize. A segment that was tried again has asked again: what lay before its first grant is then not known any more. A
job that was never moved is taken to be as slow at it as at its later starts, and one that was started only once as at
that. The two kinds are told apart as well: in place is cheaper by an order of magnitude, so that a job which was only
ever resized in place is taken to be as slow at a restart as at its first start, and not as at those.

This is the definition. The ledger computes the same in SQL (`control.ledger.profiles`), the simulator lease by lease
(`sim.engine.held_leases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic_core.domain import Allocation


@dataclass(frozen=True, slots=True)
class Past:
    """`resize_seconds` is None before anything of it was measured."""

    slot_seconds: float = 0.0
    num_resizes: int = 0  # starts and moves after the first start: each cost it a pause
    last_resize_at: float | None = None
    allocated_since: float | None = None  # when its last start or move was granted
    resize_seconds: float | None = None
    in_place_seconds: float | None = None
    restart_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease of a job. Steps are those of its own processes."""

    allocation: Allocation
    restarted: bool  # begun by new processes
    granted_at: float
    asked_at: float | None = None  # when its segment asked for slots last
    started_at: float | None = None  # first heartbeat of its processes
    first_step_at: float | None = None
    last_step_at: float | None = None
    ended_at: float | None = None  # its segment's end
    released_at: float | None = None  # its slots are free


def past(leases: Sequence[Lease], now: float) -> Past:
    """Of all of a job's leases, the oldest first."""
    pauses_of_moves: list[float] = []
    pauses_in_place: list[float] = []
    pauses_of_restarts: list[float] = []
    first_pause: list[float] = []
    interruptions: list[float] = []
    before: Lease | None = None
    for lease in leases:
        moved = before is not None and is_move(before.allocation, lease.allocation)
        if lease.restarted or moved:
            interruptions.append(lease.granted_at)
        pause = _pause(before, lease)
        if pause is not None and moved:
            pauses_of_moves.append(max(pause, 0.0))
            if not lease.restarted:
                pauses_in_place.append(max(pause, 0.0))
        if pause is not None and lease.restarted:
            (pauses_of_restarts if before is not None else first_pause).append(max(pause, 0.0))
        before = lease
    resizes = interruptions[1:]  # the first lease is always a start
    return Past(
        slot_seconds=sum(
            lease.allocation.num_slots * ((now if lease.released_at is None else lease.released_at) - lease.granted_at)
            for lease in leases
        ),
        num_resizes=len(resizes),
        last_resize_at=max(resizes, default=None),
        allocated_since=max(interruptions, default=None),
        resize_seconds=_mean(pauses_of_moves or pauses_of_restarts or first_pause),
        in_place_seconds=_mean(pauses_in_place),
        restart_seconds=_mean(pauses_of_restarts or first_pause),
    )


def _mean(seconds: Sequence[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


def is_move(before: Allocation, after: Allocation) -> bool:
    """On other slots or in another layout: all but the batch counts, and the exchange that was counted with."""
    return replace(before, global_batch=after.global_batch) != after


def _pause(before: Lease | None, lease: Lease) -> float | None:
    """Seconds without a step at the beginning of this lease; None where that is not known (yet)."""
    last_step_at = None if before is None else before.last_step_at
    if not lease.restarted:
        return None if lease.first_step_at is None or last_step_at is None else lease.first_step_at - last_step_at
    first_sign = lease.started_at if lease.first_step_at is None else lease.first_step_at
    if first_sign is None:
        return None
    start = first_sign - lease.granted_at
    if before is None or before.released_at is None:
        return start
    stopped_at = before.ended_at if last_step_at is None else last_step_at
    asks = () if lease.asked_at is None or lease.asked_at > lease.granted_at else (lease.asked_at,)
    ready_at = max((before.released_at, *asks))
    return start if stopped_at is None else start + max(ready_at - stopped_at, 0.0)
