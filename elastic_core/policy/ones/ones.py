"""ONES (Bian et al., SC 2021): batch sizes and slots of all jobs at once, by an evolutionary search over schedules.

A schedule gives every slot a job with a local batch (`genome`). The fittest has the smallest remaining utility: the sum
over its running jobs of slots x remaining time, where remaining work follows from a Beta distributed progress
(`beta_progress`) and speed from the job's fitted model. How many slots a job may fill follows from its batch limit,
which starts small and grows as the job progresses (`batch_limits`). A job that has just been moved is left
alone until that has paid for itself (in the paper, for an epoch). The best schedules seed the next search.

The seed of a search is what the snapshot says of jobs and nodes. What the paper leaves open: decision 0054.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any, ClassVar

from elastic_core.domain import JobView, Plan, Slot, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import as_they_stand, held_count, held_type, in_order, usable_types, why_waiting
from elastic_core.policy.base.weak_scaling import WeakScaling
from elastic_core.policy.ones import batch_limits
from elastic_core.policy.ones.batch_limits import ROUND
from elastic_core.policy.ones.beta_progress import remaining_work
from elastic_core.policy.ones.evolution import evolve
from elastic_core.policy.ones.genome import IDLE, Contender, Genome, Search, Shape, slots_by_job
from elastic_core.text import plural

HALVINGS = 1  # of a job's local batch, at most
SETTLING = 10.0  # resize times for which a job that was moved is left alone
_SEEDS = 8  # schedules that are remembered


class Ones:
    name: ClassVar[str] = "ones"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - the snapshot is the seed
        jobs, capacity, pool = in_order(as_they_stand(snapshot)), snapshot.capacity(), Pool.of(snapshot)
        scalings = [WeakScaling.of(job) for job in jobs]
        limits = batch_limits.update(batch_limits.recall(snapshot.policy_state), scalings, snapshot.now)
        targets: dict[str, Target] = {
            scaling.job.job_id: _as_it_is(scaling) for scaling in scalings if _settling(scaling, snapshot.now, capacity)
        }
        busy = {slot for job in jobs if job.job_id in targets and job.allocation for slot in job.allocation.slots}
        slots = [slot for slot in snapshot.slots() if slot not in busy]
        room = Counter(slot.type for slot in slots)
        free = [
            scaling for scaling in scalings if scaling.job.job_id not in targets and usable_types(scaling.job, room)
        ]
        num_slots = sum(capacity.values())
        most = {
            scaling.job.job_id: batch_limits.penalised(limits[scaling.job.job_id], scaling, jobs, num_slots)
            for scaling in free
        }
        search = _search(free, most, slots, sorted(capacity), pool)
        seeds = [_in_force(free, slots), *_recall(snapshot.policy_state, free, slots)]
        population = evolve(search, seeds, Random(_content(snapshot, jobs)))
        for row, held in slots_by_job(population[0]).items():
            shape = search.shape(held, population[0])
            job_id = free[row].job.job_id
            targets[job_id] = _target(free[row], [slots[at] for at in held], shape[3], most[job_id])
        running = len(targets)
        for job in jobs:
            if job.job_id not in targets:
                targets[job.job_id] = Target.nothing(why_waiting(job, capacity, running))
        state = {
            "batch_limits": batch_limits.to_state(limits),
            "schedules": [_remember(genome, free, slots) for genome in population[:_SEEDS]],
        }
        return Plan(policy=self.name, targets=targets, state=state, wake_at=snapshot.now + ROUND)


def _settling(scaling: WeakScaling, now: float, capacity: Mapping[str, int]) -> bool:
    job = scaling.job
    if (
        job.allocation is None
        or held_type(job) not in usable_types(job, capacity)
        or held_count(job) not in scaling.counts
    ):
        return False
    return job.allocated_since is not None and now - job.allocated_since < SETTLING * job.resize_seconds


def _as_it_is(scaling: WeakScaling) -> Target:
    job, kind = scaling.job, held_type(scaling.job)
    assert kind is not None
    count = held_count(job)
    return Target(
        counts={kind: count},
        global_batch=scaling.batch(count),
        layout=job.limits.layout(count),
        reason=f"{plural(count, 'slot')} of {kind}, kept for a while after it was moved",
    )


def _search(
    scalings: Sequence[WeakScaling], most: Mapping[str, float], slots: Sequence[Slot], kinds: Sequence[str], pool: Pool
) -> Search:
    nodes = sorted({slot.node for slot in slots})
    room = Counter(slot.type for slot in slots)
    return Search(
        contenders=tuple(_contender(scaling, most[scaling.job.job_id], kinds, room, pool) for scaling in scalings),
        type_of=tuple(kinds.index(slot.type) for slot in slots),
        node_of=tuple(nodes.index(slot.node) for slot in slots),
    )


def _contender(
    scaling: WeakScaling, limit: float, kinds: Sequence[str], room: Mapping[str, int], pool: Pool
) -> Contender:
    job = scaling.job
    local_batches = [
        scaling.local_batch / 2**times
        for times in range(HALVINGS + 1)
        if times == 0 or scaling.local_batch / 2**times >= job.limits.min_local_batch
    ]
    ladders = tuple(
        tuple(count for count in scaling.counts if count * local <= limit or count == scaling.counts[0])
        for local in local_batches
    )
    types, left = usable_types(job, room), remaining_work(job)
    utilities: dict[Shape, float] = {}
    for kind in types:
        for times, (local, ladder) in enumerate(zip(local_batches, ladders, strict=True)):
            counts = [count for count in ladder if count <= pool.capacity(kind)]
            for several in (False, True):
                batches = [scaling.batch(count, local) for count in counts]
                speeds = scaling.speeds(kind, counts, pool, batches, spread=1 + several)
                for count, speed in zip(counts, speeds.tolist(), strict=True):
                    shape = (kinds.index(kind), several, count, times)
                    utilities[shape] = count * left / speed if speed > 0 else inf
    return Contender(frozenset(kinds.index(kind) for kind in types), ladders, utilities)


def _content(snapshot: Snapshot, jobs: Sequence[JobView]) -> str:
    """What decides the search's draws: who is there, what it did and holds, and the nodes."""
    held = [(job.job_id, job.done_samples, job.allocation.slots if job.allocation else ()) for job in jobs]
    return repr((held, [(node.name, node.type, node.num_slots, node.present) for node in snapshot.nodes]))


def _in_force(scalings: Sequence[WeakScaling], slots: Sequence[Slot]) -> Genome:
    row_of = {slot: row for row, scaling in enumerate(scalings) if scaling.job.allocation is not None
              for slot in scaling.job.allocation.slots}  # fmt: skip
    return tuple((row_of[slot], 0) if slot in row_of else IDLE for slot in slots)


def _remember(genome: Genome, scalings: Sequence[WeakScaling], slots: Sequence[Slot]) -> dict[str, Any]:
    """Slots by job and local batch, each as [node, index]."""
    return {
        scalings[row].job.job_id: [genome[held[0]][1], [[slots[at].node, slots[at].index] for at in held]]
        for row, held in slots_by_job(genome).items()
    }


def _recall(state: Mapping[str, Any], scalings: Sequence[WeakScaling], slots: Sequence[Slot]) -> list[Genome]:
    """What another version of the platform, or another policy, wrote in another form is forgotten."""
    rows = {scaling.job.job_id: row for row, scaling in enumerate(scalings)}
    try:
        schedules = []
        for schedule in state.get("schedules", ()):
            genes = {
                (str(node), int(index)): (rows[job_id], min(max(int(times), 0), HALVINGS))
                for job_id, (times, held) in schedule.items()
                if job_id in rows
                for node, index in held
            }
            schedules.append(tuple(genes.get((slot.node, slot.index), IDLE) for slot in slots))
    except (AttributeError, TypeError, ValueError):
        return []
    return schedules


def _target(scaling: WeakScaling, where: Sequence[Slot], halvings: int, limit: float) -> Target:
    count, kind = len(where), where[0].type
    batch = scaling.batch(count, scaling.local_batch / 2**halvings)
    return Target(
        counts={kind: count},
        global_batch=batch,
        layout=scaling.job.limits.layout(count),
        reason=f"{plural(count, 'slot')} of {kind} at batch {batch}, of at most {limit:.0f} for now",
        nodes=dict(Counter(slot.node for slot in where)),
    )
