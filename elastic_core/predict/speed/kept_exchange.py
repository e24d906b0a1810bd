"""Which exchange a job that chooses it by measurement (`auto`) has kept, where: told from its reports alone.

Ranks choose after trials of a few steps each (`comm.tuning.auto_exchange`), and a report spans one step at least. So
what reported more often than a trial can was kept; until something has, the place tells nothing of the job's speed
there: the exact sum, which is tried first, may be several times slower than what will be kept. Where ranks hardly wait
for the exact sum they keep it without a trial.

Jobs of one task share what they measured. What an `auto` job kept is shared as such, whatever its name: that others
with the exact sum alone were slow at a place says nothing of a job that may choose. What averages weights, or computes
parts of gradients, is shared under its own name: most jobs that choose may not choose that. What was measured with
options that a step's time hangs on (an interval, within nodes first) is of use to jobs with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from elastic_core.domain import AUTO, EXACT, Limits, ProfilePoint
from elastic_core.domain.exchange_costs import WORTH
from elastic_core.spec.parts.job_comm import CLASSES

TRIAL_REPORTS = 5  # the most that one trial makes
LITTLE_WAITING = 1 - WORTH  # of a step, in which no other exchange is tried

Place = tuple[int, int, str]  # slots, nodes, type


def place_of(point: ProfilePoint) -> Place:
    return point.num_slots, point.num_nodes, point.type


def kept_at(points: Iterable[ProfilePoint]) -> dict[Place, str]:
    """The algorithm at each place that has one. Deterministic: by reports, speed, name."""
    reports: dict[tuple[Place, str], int] = {}
    speeds: dict[tuple[Place, str], float] = {}
    for point in points:
        key = place_of(point), point.comm
        reports[key] = reports.get(key, 0) + (TRIAL_REPORTS + 1 if _is_kept(point) else point.count)
        speeds[key] = max(speeds.get(key, 0.0), point.global_batch / point.step_seconds)
    kept = [key for key, count in reports.items() if count > TRIAL_REPORTS]
    return dict(sorted(kept, key=lambda key: (key[1] == AUTO, reports[key], speeds[key], key[1])))


def own_points(points: Sequence[ProfilePoint], limits: Limits) -> tuple[ProfilePoint, ...]:
    """Those measured under what the job exchanges by; one slot exchanges nothing."""
    if limits.comm != AUTO:
        return tuple(point for point in points if point.num_slots == 1 or point.comm == limits.comm)
    kept = kept_at(points)
    return tuple(point for point in points if point.num_slots == 1 or point.comm == kept.get(place_of(point)))


def exchange_of(limits: Limits) -> str:
    """The name under which jobs tell each other of steps."""
    return f"{limits.comm} {limits.comm_options}".rstrip()


def to_share(points: Sequence[ProfilePoint], limits: Limits) -> tuple[ProfilePoint, ...]:
    """What a job tells others of its task: under the algorithm's name, or as kept by choice."""
    if limits.comm != AUTO:
        return _renamed(points, limits.comm, exchange_of(limits))
    own = own_points(points, limits)
    return tuple(replace(point, comm=AUTO) if _any_may_keep(point) else point for point in own)


def shared_points(points: Sequence[ProfilePoint], limits: Limits) -> tuple[ProfilePoint, ...]:
    """What of that is of use to a job with these limits."""
    if limits.comm == AUTO:
        points = [point for point in points if point.num_slots == 1 or _is_kept(point)]
    elif limits.comm_options:
        named = [point for point in points if point.num_slots == 1 or point.comm != limits.comm]
        points = _renamed(named, exchange_of(limits), limits.comm)
    return own_points(points, limits)


def _renamed(points: Iterable[ProfilePoint], before: str, name: str) -> tuple[ProfilePoint, ...]:
    """With another name for an exchange."""
    return tuple(replace(point, comm=name) if point.num_slots > 1 and point.comm == before else point
                 for point in points)  # fmt: skip


def _any_may_keep(point: ProfilePoint) -> bool:
    """Any job that chooses at all."""
    return point.num_slots > 1 and CLASSES.get(point.comm, "exact") in ("exact", "lossy")


def _is_kept(point: ProfilePoint) -> bool:
    """Whatever the number of reports."""
    little = point.sync_seconds < LITTLE_WAITING * point.step_seconds
    return point.comm == AUTO or (point.comm == EXACT and little)
