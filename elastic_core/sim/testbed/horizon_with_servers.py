"""Horizon for jobs over parameter servers: workers, GPUs, servers and their cores are the options of its knapsack.

Such a job takes two things at once, GPUs and CPU cores, so an option is a whole form: w workers on g GPUs, p servers
of s cores (`sim.testbed.server_forms`). As in `policy.horizon.horizon`, an option is worth the rate at
which it takes time off the sum of all completion times: its speed times the price of the job's work, where longer jobs
wait for the part of the pool that it uses. Here the restart is in the price as well: a job that does not run yet has a
start of its own to pay before it is done, and that makes a short job a little longer, not its work worth less. Who
comes first is decided by the part of the pool times the time that a job needs of it, so that a job that could use the
whole pool is not taken for a short one.

One job of every task that nobody has measured counts as nearly done, so that it is tried at once, on little: it speaks
for the others (`policy.task_memory.task_profiles`). What is declared of the work is believed as far as the job's class
says (`policy.base.remaining_work`). One form a job within both capacities is chosen exactly, by dynamic programming
over the GPUs and cores left.

Snapshots without such jobs go to the policy inside, unchanged. Simulator only, as those jobs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import CPU, JobView, Layout, Plan, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.policy import Law, Policy
from elastic_core.policy.base.queue import queue_of, usual_batch
from elastic_core.policy.base.remaining_work import DeclaredWork, believed_remaining
from elastic_core.policy.horizon.horizon import INTERVAL
from elastic_core.policy.horizon.restarts import ResizeTimes
from elastic_core.policy.task_memory.task_profiles import TaskProfiles
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.sim.testbed.server_forms import Forms, forms_of, held_shape
from elastic_core.sim.testbed.with_servers import WithServers
from elastic_core.text import plural

STAY = 1200.0  # seconds that an allocation is expected to last at most
GROWTH_RESTARTS = 1.5  # restarts that more speed is charged, for the shrinking that follows it
STOP_RESTARTS = 2.0  # restarts that a stop is charged
MIN_KEPT = 0.05  # of an option's value that a start keeps, however long its restart: idle GPUs serve nobody
PROBE_SECONDS = 30.0  # seconds of work that the first job of a task counts for, until it was measured


class HorizonWithServers:
    laws: ClassVar[frozenset[Law]] = frozenset()  # whether CPUs suffice is for nobody to promise

    def __init__(self, inner: Policy) -> None:
        self.name = inner.name
        self._inner = inner
        self._servers_by_hand = WithServers(inner, "best")

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        with_servers = [job.limits.servers is not None for job in snapshot.jobs]
        if not any(with_servers):
            return self._inner.decide(snapshot, rng)
        if not all(with_servers):  # jobs that share GPUs with ordinary ones get theirs by hand
            return self._servers_by_hand.decide(snapshot, rng)
        profiles = TaskProfiles.of(snapshot.policy_state, snapshot.jobs)
        jobs = [profiles.fill_in(job) for job in queue_of(snapshot)]
        declared = DeclaredWork.of(snapshot.policy_state, jobs)
        capacity = snapshot.capacity()
        return Plan(
            policy=self.name,
            targets=_decide(jobs, declared, capacity.get("gpu", 0), capacity.get(CPU, 0)),
            state={"kin": profiles.to_state(), "told": declared.to_state()},
            wake_at=snapshot.now + INTERVAL,
        )


def _decide(jobs: Sequence[JobView], declared: DeclaredWork, gpus: int, cores: int) -> dict[str, Target]:
    forms = [forms_of(job, gpus, cores) for job in jobs]
    width = max(len(form.shapes) for form in forms)
    if not all(form.shapes for form in forms):  # the pool has no GPUs, or too few cores for one worker and one server
        return {job.job_id: Target.nothing("waits: the pool cannot hold a worker and a server") for job in jobs}
    speed = np.asarray([np.pad(form.speed, (0, width - len(form.speed))) for form in forms])
    pool_share = np.asarray([_padded(np.maximum(form.gpus / gpus, form.cores / cores), width) for form in forms])
    fastest = speed.max(axis=1)
    remaining_work = believed_remaining(jobs, declared, fastest)
    remaining_work = np.where(_probes(jobs), np.minimum(remaining_work, PROBE_SECONDS * fastest), remaining_work)
    held = np.asarray([_held(job, form) for job, form in zip(jobs, forms, strict=True)])
    restart_seconds = ResizeTimes().of_restarts(jobs)
    values, num_longer = _values(remaining_work, speed, pool_share, held, restart_seconds)
    chosen = best_forms(values, [form.gpus for form in forms], [form.cores for form in forms], gpus, cores)
    return {
        job.job_id: _target(job, forms[row], int(chosen[row]), int(num_longer[row])) for row, job in enumerate(jobs)
    }


def _padded(pool_share: Floats, width: int) -> Floats:
    return np.pad(pool_share, (0, width - len(pool_share)), constant_values=1.0)


def _probes(jobs: Sequence[JobView]) -> NDArray[np.bool_]:
    """One job of every task that nobody has measured: the one that runs, else the first."""
    first: dict[str, str] = {}
    for job in sorted(jobs, key=lambda job: job.allocation is None):  # stable: else the order of arrival
        if not any(point.roles for point in job.profile):
            first.setdefault(job.task or job.job_id, job.job_id)
    chosen = set(first.values())
    return np.asarray([job.job_id in chosen for job in jobs])


def _held(job: JobView, forms: Forms) -> int:
    shape = held_shape(job)
    return forms.shapes.index(shape) if shape in forms.shapes else NOTHING


def _values(
    remaining_work: Floats, speed: Floats, pool_share: Floats, held: Ints, restart_seconds: Floats
) -> tuple[Floats, Ints]:
    """(value of each option to each job, jobs that need longer than it)."""
    rows, runs = np.arange(len(speed)), held != NOTHING
    now_at = np.where(runs, speed[rows, held], 0.0)
    with np.errstate(divide="ignore"):
        remaining_seconds = np.where(speed > 0, remaining_work[:, None] / speed, np.inf)
    start = np.where(runs, 0.0, restart_seconds)[:, None]
    pool_seconds = ((remaining_seconds + start) * pool_share).min(axis=1)
    num_longer = (pool_seconds[None, :] > pool_seconds[:, None]).sum(axis=1)
    rate = speed * _time_kept(remaining_seconds, speed > now_at[:, None], held, restart_seconds)
    with np.errstate(divide="ignore"):
        price = np.where(rate > 0, (1.0 + num_longer[:, None] * pool_share) / rate, np.inf).min(axis=1)
    value_of_restart = STOP_RESTARTS * restart_seconds / STAY * price * now_at  # who is stopped pays for another start
    return np.where(speed > 0, price[:, None] * rate + value_of_restart[:, None], 0.0), num_longer


def _time_kept(remaining_seconds: Floats, grows: NDArray[np.bool_], held: Ints, restart_seconds: Floats) -> Floats:
    """Share of an option's time that its restart leaves for training."""
    rows, runs = np.arange(len(remaining_seconds)), held != NOTHING
    time_lost = restart_seconds[:, None] / np.maximum(
        np.minimum(remaining_seconds + restart_seconds[:, None], STAY), 1e-9
    )
    time_lost = np.where(runs[:, None] & grows, time_lost * GROWTH_RESTARTS, time_lost)
    time_kept: Floats = np.maximum(1.0 - time_lost, np.where(runs, 0.0, MIN_KEPT)[:, None])
    time_kept[rows[runs], held[runs]] = 1.0
    return time_kept


def best_forms(
    values: Floats, gpus_of: Sequence[Ints], cores_of: Sequence[Ints], gpus: int, cores: int
) -> Ints:  # fmt: skip
    """The option of each job (row of `values`), `NOTHING` for none: the largest sum within both capacities, exactly."""
    best = np.zeros((gpus + 1, cores + 1))  # over the jobs so far, by what there is for them
    choices = []
    for row, (job_gpus, job_cores) in enumerate(zip(gpus_of, cores_of, strict=True)):
        better, choice = best.copy(), np.full(best.shape, NOTHING, dtype=np.int64)
        for option in np.flatnonzero(values[row, : len(job_gpus)] > 0):
            g, c = int(job_gpus[option]), int(job_cores[option])
            if g > gpus or c > cores:
                continue
            candidate = best[: gpus + 1 - g, : cores + 1 - c] + values[row, option]
            wins = candidate > better[g:, c:]
            better[g:, c:][wins] = candidate[wins]
            choice[g:, c:][wins] = option
        best = better
        choices.append(choice)
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for row in range(len(values) - 1, -1, -1):
        chosen[row] = choices[row][gpus, cores]
        if chosen[row] != NOTHING:
            gpus -= int(gpus_of[row][chosen[row]])
            cores -= int(cores_of[row][chosen[row]])
    return chosen


def _target(job: JobView, forms: Forms, option: int, num_longer: int) -> Target:
    if option == NOTHING:
        return Target.nothing("waits: GPUs and cores take more off the sum of completion times where they are")
    assert job.limits.servers is not None
    shape = forms.shapes[option]
    size = shape.size(job.limits.servers)
    form = f"{plural(shape.workers, 'worker')} on {plural(shape.gpus, 'GPU')}, {plural(shape.servers, 'server')}"
    return Target(
        counts=dict(size.counts),
        global_batch=usual_batch(job, shape.workers),
        layout=Layout(data=shape.workers),
        reason=(f"{form} of {plural(shape.server_cores, 'core')}: {num_longer} need longer"),
        roles=size.roles,
    )
