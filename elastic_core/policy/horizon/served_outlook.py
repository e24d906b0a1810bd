"""Workers on slots of one type and their servers on CPUs: further options of jobs that may have parameter servers.

So no accelerator is spent on a process that only keeps and steps parameters (AITurbo, HPDC 2021, section 4). Such an
option is a bundle of two types, of one job's workers and servers. Its speed follows from the option of one type that is
nearest to it, by the job's own step times in both layouts, to which the type of the servers makes no difference
(`predict.speed.served_steps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastic_core.domain import CPU, JobView, Layout
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.outlook import Outlooks
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.throughput import Floats, StepTime

FEW_WORKERS = 8  # up to so many every number of them is a choice; beyond, those that any job has


@dataclass(frozen=True, slots=True)
class ServersApart:
    """Workers on `kind`, servers on CPU slots."""

    layout: Layout
    kind: str

    @property
    def counts(self) -> dict[str, int]:
        return {self.kind: self.layout.data, CPU: self.layout.servers}

    def __str__(self) -> str:
        workers, servers = str(self.layout).split(" and ")
        return f"{workers} on {self.kind} and {servers} on {CPU}"


@dataclass(frozen=True)
class ServedOptions:
    """`of`: by row of a job that may have its servers apart, what each such option is to it."""

    of: Mapping[int, Mapping[int, ServersApart]]

    @staticmethod
    def among(jobs: Sequence[JobView], options: Options) -> ServedOptions:
        of = {}
        for row, job in enumerate(jobs):
            at = ((options.at(apart.counts), apart) for apart in _of_job(job, options))
            if found := {option: apart for option, apart in at if option is not None}:
                of[row] = found
        return ServedOptions(of)

    def apart(self, row: int, option: int) -> ServersApart | None:
        return self.of.get(row, {}).get(option)

    def error(self, row: int, option: int, job: JobView, times: StepTime) -> float | None:
        """One standard deviation of the step time there, relative to it; None for an option of one type."""
        apart = self.apart(row, option)
        if apart is None:
            return None
        reports = [point.count for point in job.profile if (point.layout, point.type) == (apart.layout, apart.kind)]
        if reports:
            return throughput.measured_error(max(reports))
        assert times.served is not None
        return times.served.relative_error


def with_servers_apart(options: Options, jobs: Sequence[JobView]) -> Options:
    return options.with_bundles(apart.counts for job in jobs for apart in _of_job(job, options))


def with_served(
    outlook: Outlooks, options: Options, jobs: Sequence[JobView], served: ServedOptions, remaining_work: Floats
) -> Outlooks:
    """The outlook over all options, with what jobs do there whose servers are apart. A job that may run on no one type
    of the pool keeps its reference batch, at which a sample is worth one."""
    if not served.of:
        return outlook
    rates, seconds, batches = outlook.work_rate.copy(), outlook.remaining_seconds.copy(), outlook.batches.copy()
    for row, of_row in served.of.items():
        job, times = jobs[row], outlook.times[row]
        for option, apart in of_row.items():
            near = _nearest(rates[row, : options.num_single], options, apart)
            batch = job.limits.reference_batch if near is None else int(batches[row, near])
            if not apart.layout.world_size <= batch <= job.limits.max_batch:
                continue
            step = times.seconds_in(apart.layout, int(options.num_nodes[option]), apart.kind, batch, job.limits)
            if near is None:
                rates[row, option] = batch / (step * outlook.slowness[row])
                seconds[row, option] = remaining_work[row] / rates[row, option]
            else:
                slower = step / _seconds_of_one_type(near, batch, options, job, times)
                rates[row, option] = rates[row, near] / slower
                seconds[row, option] = seconds[row, near] * slower
            batches[row, option] = batch
    return replace(outlook, work_rate=rates, remaining_seconds=seconds, batches=batches)


def _of_job(job: JobView, options: Options) -> Iterator[ServersApart]:
    """What it could hold in an empty pool, in no more numbers of workers than are worth looking at."""
    limits = job.limits
    if limits.placed is not None or not any(cut.servers for cut in limits.cuts):
        return
    capacity = dict(zip(options.kinds, options.capacity.tolist(), strict=True))
    usual = set(options.counts[: options.num_single].tolist())
    held = job.allocation.layout if job.allocation is not None else None
    for kind, layout in limits.servers_apart(capacity):
        if layout.data <= FEW_WORKERS or layout.data in usual or layout == held:
            yield ServersApart(layout, kind)


def _nearest(rates: Floats, options: Options, apart: ServersApart) -> int | None:
    """The option of one type where the job may run that is most like it: the workers' type if there is one, and as many
    slots."""
    usable = np.flatnonzero(rates > 0).tolist()

    def distance(option: int) -> tuple[bool, int]:
        same = options.kinds[options.kind_index[option]] == apart.kind
        return not same, abs(int(options.counts[option]) - apart.layout.world_size)

    return min(usable, key=distance, default=None)


def _seconds_of_one_type(option: int, batch: int, options: Options, job: JobView, times: StepTime) -> float:
    """In the best layout there."""
    kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
    num_nodes = int(options.num_nodes[option])
    return min(times.seconds_in(layout, num_nodes, kind, batch, job.limits) for layout in job.limits.layouts(count))
