"""Jobs over CPUs and GPUs made up by a seed, in the shape of AITurbo's 60-job workload, for when that is not at hand.

Six kinds differ in what their step is spent on, from all computation to nearly all exchange. Jobs arrive a few seconds
apart on a pool of four GPUs that is far too small for them, as in the original: what is judged is who goes first.
None of it is a measurement.
"""

from __future__ import annotations

from random import Random

from elastic_core.domain import Node
from elastic_core.sim.ground_truth.servers import CpuEfficiency, GpuShare, ServerPhysics
from elastic_core.sim.ground_truth.workload import SimJob, Workload, nodes, workload
from elastic_core.sim.traces.vgpu import server_limits

# Two machines with two GPUs and 30 cores each: near the 57 cores and 4 GPUs of AITurbo's testbed.
TESTBED: tuple[Node, ...] = (*nodes("gpu", 2, 2), *nodes("cpu", 2, 30))

# Of a step of one worker and one server: computation by sample, computation at all, exchange, update, per worker, per
# server; and its seconds at a batch.
KINDS: dict[str, tuple[tuple[float, ...], float, int]] = {
    "all-compute": ((0.90, 0.08, 0.01, 0.005, 0.004, 0.001), 0.35, 32),
    "mostly-compute": ((0.60, 0.15, 0.12, 0.09, 0.03, 0.01), 0.9, 64),
    "half": ((0.35, 0.15, 0.30, 0.14, 0.05, 0.01), 0.3, 64),
    "exchange": ((0.20, 0.10, 0.45, 0.15, 0.09, 0.01), 1.2, 32),
    "mostly-exchange": ((0.12, 0.05, 0.60, 0.15, 0.07, 0.01), 1.4, 1024),
    "connections": ((0.40, 0.10, 0.15, 0.05, 0.20, 0.10), 0.25, 32),
}
_MEAN_GAP = 3.6  # seconds
_MEDIAN_STEPS, _SPREAD = 450.0, 1.0
_FEWEST, _MOST = 100, 5000
_SERVER_CPU = CpuEfficiency(-4.5, 2.0, 5.0)
_SHARE = GpuShare(3.0, 2.8, 0.05)


def generated(seed: int, *, num_jobs: int = 60) -> Workload:
    """The same seed gives the same workload."""
    rng = Random(f"servers/{seed}")
    jobs, at = [], 0.0
    for index in range(num_jobs):
        name = rng.choice(list(KINDS))
        jobs.append(_job(f"job-{index:03d}", name, at, rng))
        at += rng.uniform(0.5, 1.5) * _MEAN_GAP
    return workload(f"jobs over servers, seed {seed}", jobs)


def _job(job_id: str, name: str, at: float, rng: Random) -> SimJob:
    shares, seconds, batch = KINDS[name]
    forward, backward, exchange, update, per_worker, per_server = (share * seconds for share in shares)
    steps = min(_MOST, max(_FEWEST, round(rng.lognormvariate(0.0, _SPREAD) * _MEDIAN_STEPS)))
    physics = ServerPhysics(
        base_batch=batch, work=float(batch * steps), forward=forward / batch, backward=backward, exchange=exchange,
        update=update, per_worker=per_worker, per_server=per_server, server_cpu=_SERVER_CPU, forward_share=_SHARE,
        backward_share=_SHARE,
    )  # fmt: skip
    workers, servers = rng.choice(((1, 2), (2, 1), (2, 1), (2, 2)))
    limits = server_limits(batch, workers=workers, servers=servers)
    return SimJob(job_id=job_id, task=name, submitted_at=at, physics=physics, limits=limits)
