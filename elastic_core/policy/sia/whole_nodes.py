"""Placement without fragments: small jobs inside one node, large jobs on whole nodes (Sia, SOSP 2023, section 3.4).

Jobs that keep their configuration stay where they are as long as everybody else finds a proper place beside them;
where not, the fewest of their slots that make room are moved too. Counts that divide each other (1, 2, 4, ... and
whole nodes) always find a place; for any other count that does not, the usual packing rule decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastic_core.domain import JobView, Snapshot


@dataclass(slots=True)
class _Place:
    """One node while it is being filled."""

    size: int
    free: int
    movable: dict[str, int] = field(default_factory=dict)  # slots of the jobs that are here and could go elsewhere


def on_whole_nodes(
    grants: Mapping[str, tuple[str, int]], jobs: Sequence[JobView], snapshot: Snapshot
) -> dict[str, Mapping[str, int]]:
    """Slots by node for each job that is granted (type, count); a job that stays gets what it has."""
    held = {job.job_id: _by_node(job) for job in jobs}
    kinds = {node.name: node.type for node in snapshot.nodes if node.present}
    placements: dict[str, Mapping[str, int]] = {}
    for kind in sorted(set(kinds.values())):
        sizes = {node.name: node.num_slots for node in snapshot.nodes if node.present and node.type == kind}
        counts = {job_id: count for job_id, (granted_kind, count) in grants.items() if granted_kind == kind}
        placements |= _one_type(counts, {job_id: held[job_id] for job_id in counts}, sizes)
    return placements


def _by_node(job: JobView) -> dict[str, int]:
    return dict(Counter(slot.node for slot in job.allocation.slots)) if job.allocation is not None else {}


def _one_type(
    counts: Mapping[str, int], held: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int]
) -> dict[str, Mapping[str, int]]:
    places = {name: _Place(size, size) for name, size in sizes.items()}
    placed: dict[str, Mapping[str, int]] = {}
    queue = []
    for job_id, count in counts.items():
        if sum(held[job_id].values()) == count and _proper(held[job_id], sizes):
            placed[job_id] = held[job_id]
            for name, number in held[job_id].items():
                places[name].free -= number
                if len(held[job_id]) == 1:
                    places[name].movable[job_id] = number
        else:
            queue.append((-count, job_id))
    while queue:
        queue.sort()
        negated_count, job_id = queue.pop(0)
        chosen = _whole(-negated_count, places) or _inside(-negated_count, places)
        if chosen is None:
            continue
        for name, number in chosen.items():
            for evicted in _make_room(places[name], number):
                queue.append((-counts[evicted], evicted))
                placed.pop(evicted)
            places[name].free -= number
            if len(chosen) == 1:
                places[name].movable[job_id] = number
        placed[job_id] = chosen
    return placed


def _proper(held: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """On one node, or on whole nodes only."""
    if not held.keys() <= sizes.keys():
        return False
    return len(held) == 1 or all(number == sizes[name] for name, number in held.items())


def _whole(count: int, places: Mapping[str, _Place]) -> dict[str, int] | None:
    """Whole nodes that add up to the count, those first on which the least has to move."""
    order = sorted(
        (name for name, place in places.items() if _can_have(place, place.size, count)),
        key=lambda name: (places[name].size - places[name].free, name),
    )
    chosen: dict[str, int] = {}
    for name in order:
        if sum(chosen.values()) + places[name].size <= count:
            chosen[name] = places[name].size
    return chosen if chosen and sum(chosen.values()) == count else None


def _inside(count: int, places: Mapping[str, _Place]) -> dict[str, int] | None:
    """Part of one node: the least to move, then the tightest fit."""
    fitting = [name for name, place in places.items() if _can_have(place, count, count)]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: (max(count - places[name].free, 0), places[name].free, name))
    return {best: count}


def _can_have(place: _Place, number: int, count: int) -> bool:
    """Whether `number` slots can be had here by moving jobs that are smaller than `count`."""
    return place.free + sum(held for held in place.movable.values() if held < count) >= number


def _make_room(place: _Place, number: int) -> list[str]:
    """Who has to go so that `number` slots are free: the smallest first."""
    evicted = []
    for job_id, held in sorted(place.movable.items(), key=lambda item: (item[1], item[0])):
        if place.free >= number:
            break
        place.free += held
        evicted.append(job_id)
    for job_id in evicted:
        del place.movable[job_id]
    return evicted
