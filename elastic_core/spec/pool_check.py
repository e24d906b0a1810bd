"""What a job spec asks of a cluster that the cluster can never give, found before the job waits for it in vain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from elastic_core.domain import CPU
from elastic_core.spec.cluster import ClusterSpec
from elastic_core.spec.job import JobSpec
from elastic_core.spec.problems import refuse
from elastic_core.text import near_miss

NO_SHARE = "default"  # the queue of a job that names none


def check_against(spec: JobSpec, cluster: ClusterSpec, now: float | None = None) -> None:
    """Raises `UserError` with every reason why the job could never run there, and what would be possible.

    `now` (Unix seconds) also refuses a deadline that has passed.
    """
    problems = _problems(spec, cluster, now)
    if problems:
        raise refuse("job spec", problems)


def check_change(spec: JobSpec, in_force: JobSpec, cluster: ClusterSpec) -> None:
    """Raises `UserError` for what the cluster can never give the job by this spec, and not for what it already cannot
    give it by the one in force: a type that is away is no reason to refuse what has nothing to do with it."""
    had = _problems(in_force, cluster)
    wants_no_more = spec.limits().slot_counts[0] <= in_force.limits().slot_counts[0]
    known = {_subject(problem) for problem in had} if wants_no_more else set()
    new = [problem for problem in _problems(spec, cluster) if problem not in had and _subject(problem) not in known]
    if new:
        raise refuse("job spec", new)


def _subject(problem: str) -> str:
    return problem.partition(":")[0]


def _problems(spec: JobSpec, cluster: ClusterSpec, now: float | None = None) -> list[str]:
    return [*_types(spec, cluster), *_comm(spec, cluster), *_queue(spec, cluster), *_deadline(spec, now)]


def _types(spec: JobSpec, cluster: ClusterSpec) -> Iterator[str]:
    capacity = cluster.capacity()
    have = ", ".join(f"{count} of {kind}" for kind, count in sorted(capacity.items()))
    unknown = [kind for kind in spec.slots.types if kind not in capacity]
    for kind in unknown:
        near = near_miss(kind, capacity)
        hint = f"; did you mean {near!r}?" if near else "."
        yield f"slots.types: the cluster has no type {kind!r}{hint} It has {have}"
    allowed = [kind for kind in spec.slots.types or capacity if kind in capacity]
    largest = max((capacity[kind] for kind in allowed), default=0)
    limits = spec.limits()
    fewest = limits.slot_counts[0]
    if spec.places_layers:  # of all types together, which the planner looks at
        return
    if allowed and fewest > largest and not any(limits.servers_apart(capacity)):
        yield (
            f"slots.min: the job needs at least {fewest} slots of one type, and the cluster has {have}; "
            f"possible are at most {largest}"
        )


def _comm(spec: JobSpec, cluster: ClusterSpec) -> Iterator[str]:
    others = sorted(
        kind for kind in cluster.capacity() if kind != CPU and (not spec.slots.types or kind in spec.slots.types)
    )
    if spec.comm.stage_ratio is not None and others:
        yield (
            f"comm.stage_ratio: stages shrink what they send on slots of type {CPU!r} only, and the job may get "
            f"{', '.join(others)}; possible are slots.types: [{CPU}], or stage_ratio left out"
        )


def _queue(spec: JobSpec, cluster: ClusterSpec) -> Iterator[str]:
    """A misspelt queue would silently be one without any share."""
    known = [queue.name for queue in cluster.queues]
    if spec.queue in (*known, NO_SHARE):
        return
    near = near_miss(spec.queue, [*known, NO_SHARE])
    hint = f"; did you mean {near!r}?" if near else "."
    have = f"{', '.join(known)}; jobs of {NO_SHARE!r} use what those leave" if known else f"{NO_SHARE!r} only"
    yield f"queue: the cluster has no queue {spec.queue!r}{hint} It has {have}"


def _deadline(spec: JobSpec, now: float | None) -> Iterator[str]:
    if now is not None and spec.deadline is not None and spec.deadline.timestamp() <= now:
        at = datetime.fromtimestamp(now, UTC)
        yield (
            f"deadline: {spec.deadline.isoformat()} has passed, it is {at.isoformat(timespec='seconds')}; "
            "give a later one or none"
        )
