"""Who is compared in the live benchmark: a policy, the settings that it runs under, and what its jobs ask for.

`fixed-at-best-request` is what a static scheduler does for users who know their jobs: of the rules that a user might go
by (as many slots as are used to at least so much efficiency), the one under which the simulator, which knows the truth,
ends the jobs soonest on average, each at the batch that is fastest there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.live.live_workload import LiveJob, LiveWorkload, simulated
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import split
from elastic_core.spec import JobSpec

EFFICIENCIES = (0.9, 0.7, 0.5, 0.3, 0.0)
ASSUMED_RESTART = 5.0  # seconds, where requests are compared
REFERENCE = "t4"
SLOTS_A_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    best_request: bool = False

    def workload(self, loaded: LiveWorkload) -> LiveWorkload:
        """As its jobs ask: under the same fingerprint, since what they are is the same."""
        return with_requests(loaded, best_requests(loaded)) if self.best_request else loaded

    def specs(self, loaded: LiveWorkload, seed: int) -> dict[str, JobSpec]:
        return {job.name: job.spec(seed) for job in self.workload(loaded).jobs}


CONTENDERS: Mapping[str, Contender] = {
    "horizon": Contender(policy="horizon"),
    "horizon-without-predictors": Contender(policy="horizon", settings={"use_predictors": False}),
    "elastic_batch": Contender(policy="elastic_batch"),
    "fair_share": Contender(policy="fair_share"),
    "fixed": Contender(policy="fixed"),
    "fixed-at-best-request": Contender(policy="fixed", best_request=True),
}
SEEDS = (0, 1)  # that a report wants of each
OTHERS = ("elastic_batch", "fair_share", "fixed", "fixed-at-best-request")

Requests = Mapping[str, tuple[int, int]]  # slots and batch by job


def with_requests(loaded: LiveWorkload, requests: Requests) -> LiveWorkload:
    jobs = [replace(job, requested_slots=requests[job.name][0], requested_batch=requests[job.name][1])
            for job in loaded.jobs]  # fmt: skip
    return replace(loaded, jobs=tuple(jobs))


def best_requests(loaded: LiveWorkload) -> Requests:
    largest = max(node.num_slots for node in loaded.nodes)
    candidates = [{job.name: _request(job, least, largest) for job in loaded.jobs} for least in EFFICIENCIES]
    return min(candidates, key=lambda requests: _mean_completion(with_requests(loaded, requests)))


def _mean_completion(loaded: LiveWorkload) -> float:
    options = Options(noise=0.0, timeline=False)
    result = simulate(simulated(loaded, ASSUMED_RESTART, {}), loaded.nodes, registry.get("fixed"), options)
    return float(result.figures()["mean_completion"])


def _request(job: LiveJob, least: float, largest: int) -> tuple[int, int]:
    """The most slots of one node that are used to at least so much of what as many single ones would do."""
    counts = [count for count in job.counts if count <= largest] or [job.counts[0]]
    speeds = {count: _fastest(job, count) for count in counts}
    alone = speeds[counts[0]][0] / counts[0]
    count = max(n for n in counts if n == counts[0] or speeds[n][0] / n >= least * alone)
    return count, speeds[count][1]


def _fastest(job: LiveJob, count: int) -> tuple[float, int]:
    """(samples a second, batch) of the fastest batch on so many slots of one node."""
    physics, speeds, batch = job.physics(), [], max(job.min_batch, count)
    while batch <= min(job.max_batch, count * job.local_limit):
        cut = split(batch, count, job.local_limit, job.max_batch)
        speeds.append((cut.batch / physics.seconds(REFERENCE, (count,), cut.local, cut.accumulation)[0], batch))
        batch *= 2
    return max(speeds)
