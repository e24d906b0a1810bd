"""Horizon for jobs over parameter servers: workers, GPUs, servers and their cores are the options of its knapsack.

Such a job takes two things at once, GPUs and CPU cores, so an option is a whole form: w workers on g GPUs, p servers
of s cores (`policy.server_forms`). As in `policy.horizon`, an option is worth the rate at which it takes time off the
sum of all completion times: its speed times the price of the job's work, where longer jobs wait for the part of the
pool that it uses. Here the restart is in the price as well: a job that does not run yet has a start of its own to pay
before it is done, and that makes a short job a little longer, not its work worth less. Who comes first is decided by
the part of the pool times the time that a job needs of it, so that a job that could use the whole pool is not taken
for a short one.

One job of every task that nobody has measured counts as nearly done, so that it is tried at once, on little: it speaks
for the others (`policy.kin`). What is told of the work is believed as far as the job's class says (`policy.told_work`).
One form a job within both capacities is chosen exactly, by dynamic programming over the GPUs and cores left.

Snapshots without such jobs go to the policy inside, unchanged. Simulator only, as those jobs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import CPU, JobView, Layout, Plan, Snapshot, Target
from elastic_core.policy.contract import Law, Policy
from elastic_core.policy.horizon import INTERVAL
from elastic_core.policy.kin import Kin
from elastic_core.policy.knapsack import NOTHING
from elastic_core.policy.queue import plural, queue_of, usual_batch
from elastic_core.policy.restarts import pauses
from elastic_core.policy.server_forms import Forms, forms_of, held_shape
from elastic_core.policy.told_work import Told, believed
from elastic_core.policy.with_servers import WithServers
from elastic_core.predict.throughput import Floats, Ints

STAY = 1200.0  # seconds that an allocation is expected to last at most
GROW = 1.5  # restarts that more speed is charged, for the shrinking that follows it
STOP = 2.0  # restarts that a stop is charged
LEAST_KEEP = 0.05  # of an option's value that a start keeps, however long its restart: idle GPUs serve nobody
PROBE = 30.0  # seconds of work that the first job of a task counts for, until it was measured


class HorizonWithServers:
    laws: ClassVar[frozenset[Law]] = frozenset()  # whether CPUs suffice is for nobody to promise

    def __init__(self, inner: Policy) -> None:
        self.name = inner.name
        self._inner = inner
        self._by_hand = WithServers(inner, "best")

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        with_servers = [job.limits.servers is not None for job in snapshot.jobs]
        if not any(with_servers):
            return self._inner.decide(snapshot, rng)
        if not all(with_servers):  # jobs that share GPUs with ordinary ones get theirs by hand
            return self._by_hand.decide(snapshot, rng)
        kin = Kin.of(snapshot.policy_state, snapshot.jobs)
        jobs = [kin.teach(job) for job in queue_of(snapshot)]
        told = Told.of(snapshot.policy_state, jobs)
        capacity = snapshot.capacity()
        return Plan(
            policy=self.name,
            targets=_decide(jobs, told, capacity.get("gpu", 0), capacity.get(CPU, 0)),
            state={"kin": kin.to_state(), "told": told.to_state()},
            wake_at=snapshot.now + INTERVAL,
        )


def _decide(jobs: Sequence[JobView], told: Told, gpus: int, cores: int) -> dict[str, Target]:
    forms = [forms_of(job, gpus, cores) for job in jobs]
    width = max(len(form.shapes) for form in forms)
    if not all(form.shapes for form in forms):  # the pool has no GPUs, or too few cores for one worker and one server
        return {job.job_id: Target.nothing("waits: the pool cannot hold a worker and a server") for job in jobs}
    speed = np.asarray([np.pad(form.speed, (0, width - len(form.speed))) for form in forms])
    part = np.asarray([_padded(np.maximum(form.gpus / gpus, form.cores / cores), width) for form in forms])
    fastest = speed.max(axis=1)
    left = believed(jobs, told, fastest)
    left = np.where(_probes(jobs), np.minimum(left, PROBE * fastest), left)
    held = np.asarray([_held(job, form) for job, form in zip(jobs, forms, strict=True)])
    pause = pauses(jobs)
    values, need, longer = _values(left, speed, part, held, pause)
    chosen = best_forms(values, [form.gpus for form in forms], [form.cores for form in forms], gpus, cores)
    return {
        job.job_id: _target(job, forms[row], int(chosen[row]), float(need[row, chosen[row]]), int(longer[row]))
        for row, job in enumerate(jobs)
    }


def _padded(part: Floats, width: int) -> Floats:
    return np.pad(part, (0, width - len(part)), constant_values=1.0)


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


def _values(left: Floats, speed: Floats, part: Floats, held: Ints, pause: Floats) -> tuple[Floats, Floats, Ints]:
    """(value of each option to each job, seconds that it needs there, jobs that need longer than it)."""
    rows, runs = np.arange(len(speed)), held != NOTHING
    now_at = np.where(runs, speed[rows, held], 0.0)
    with np.errstate(divide="ignore"):
        need = np.where(speed > 0, left[:, None] / speed, np.inf)
    start = np.where(runs, 0.0, pause)[:, None]
    area = ((need + start) * part).min(axis=1)
    longer = (area[None, :] > area[:, None]).sum(axis=1)
    rate = speed * _kept(need, speed > now_at[:, None], held, pause)
    with np.errstate(divide="ignore"):
        price = np.where(rate > 0, (1.0 + longer[:, None] * part) / rate, np.inf).min(axis=1)
    again = STOP * pause / STAY * price * now_at  # who is stopped pays for another start
    return np.where(speed > 0, price[:, None] * rate + again[:, None], 0.0), need, longer


def _kept(need: Floats, grows: NDArray[np.bool_], held: Ints, pause: Floats) -> Floats:
    """Share of an option's time that its restart leaves for training."""
    rows, runs = np.arange(len(need)), held != NOTHING
    lost = pause[:, None] / np.maximum(np.minimum(need + pause[:, None], STAY), 1e-9)
    lost = np.where(runs[:, None] & grows, lost * GROW, lost)
    kept: Floats = np.maximum(1.0 - lost, np.where(runs, 0.0, LEAST_KEEP)[:, None])
    kept[rows[runs], held[runs]] = 1.0
    return kept


def best_forms(
    values: Floats, takes_gpus: Sequence[Ints], takes_cores: Sequence[Ints], gpus: int, cores: int
) -> Ints:  # fmt: skip
    """The option of each job (row of `values`), `NOTHING` for none: the largest sum within both capacities, exactly."""
    best = np.zeros((gpus + 1, cores + 1))  # over the jobs so far, by what there is for them
    taken = []
    for row, (job_gpus, job_cores) in enumerate(zip(takes_gpus, takes_cores, strict=True)):
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
        taken.append(choice)
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for row in range(len(values) - 1, -1, -1):
        chosen[row] = taken[row][gpus, cores]
        if chosen[row] != NOTHING:
            gpus -= int(takes_gpus[row][chosen[row]])
            cores -= int(takes_cores[row][chosen[row]])
    return chosen


def _target(job: JobView, forms: Forms, option: int, need: float, longer: int) -> Target:
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
        reason=f"{form} of {plural(shape.server_cores, 'core')}: done in about {need:.0f} s, {longer} need longer",
        roles=size.roles,
    )
