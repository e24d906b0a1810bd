"""`aiturbo` on jobs over parameter servers whose workers share GPUs and whose servers have cores: AITurbo's own ground.

The policy is the product's; what such a job can hold, and what that is worth in its currency, is added here.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_core.domain import JobView
from elastic_core.policy.aiturbo.aiturbo import AITurbo
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.parameter_servers.sizes import Sizes
from elastic_core.sim.testbed.server_sizes import ServerSizes, service_rate_of_cores


class AITurboWithServers(AITurbo):
    """Under the same name."""

    def held_rate(self, job: JobView) -> float:
        if job.allocation is None or not job.allocation.roles:
            return super().held_rate(job)
        return service_rate_of_cores(job.allocation.counts())

    def sizes_of(self, job: JobView, capacity: Mapping[str, int], pool: Pool) -> Sizes:
        return super().sizes_of(job, capacity, pool) if job.limits.servers is None else ServerSizes(job)
