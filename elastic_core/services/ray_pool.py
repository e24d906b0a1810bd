"""A service of installations on Ray: the ledger's pool is that of the cluster, and a lost node is known at once.

Nodes, types, slots and prices come of Ray, queues of the cluster file. A node that Ray drains is set aside, so that
jobs leave it at a boundary, and taken back when it is not drained any more: which those are the ledger says, so that it
does not matter whether this service was started again meanwhile. After a loss dead groups are looked for until the
ledger has heard of them all: the coordinator of some may have been on that node.
"""

from __future__ import annotations

import time

from elastic_core import logs
from elastic_core.errors import ElasticError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.host.this_machine import read_cluster
from elastic_core.launch import launchers
from elastic_core.launch.host_reconcile import reconcile_host
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports, RayPool
from elastic_core.protocol.callers import Way, at_host
from elastic_core.protocol.http_client import HttpControl
from elastic_core.services.secrets import read_secret
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec

log = logs.get_logger("elastic_core.services.ray_pool")
LOOK_SECONDS = 1.0
AFTER_LOSS_SECONDS = 120.0  # that dead groups are looked for
DRAINED = "Ray drains it"


class RayPoolService:
    def __init__(self, settings: Settings, control: HttpControl, reports: PoolReports, launcher: Launcher) -> None:
        self._settings, self._control, self._reports, self._launcher = settings, control, reports, launcher
        self._pool: RayPool | None = None
        self._look_until = 0.0  # monotonic seconds

    def turn(self) -> None:
        """Bring the ledger up to what Ray says. Raises `ElasticError` where one of the two does not answer."""
        pool = self._reports.newest()
        if pool is not None and pool.nodes and pool != self._pool:
            self._apply(pool)
        if time.monotonic() < self._look_until:
            reconcile_host(self._control, self._launcher, SteadyClock(self._settings.home))

    def _apply(self, pool: RayPool) -> None:
        before = self._pool
        for node, why in pool.unclean.items():
            log.warning(f"node {node} gets no work yet: {why}")
        acting = self._control.acting(at_host(Way.CLI))
        acting.set_cluster(cluster_of(self._settings, pool))
        self._agree_on_drained(acting, frozenset(pool.draining))
        if before is not None and {node.name for node in before.nodes} - {node.name for node in pool.nodes}:
            self._look_until = time.monotonic() + AFTER_LOSS_SECONDS
        self._pool = pool
        log.info(f"the pool has the nodes {', '.join(node.name for node in pool.nodes)}")

    def _agree_on_drained(self, acting: HttpControl, draining: frozenset[str]) -> None:
        """Nodes that were set aside for another reason stay as they are, drained or not."""
        for node in acting.nodes():
            if node.name in draining and node.set_aside_reason is None:
                acting.set_aside_node(node.name, DRAINED)
            elif node.name not in draining and node.set_aside_reason == DRAINED:
                acting.take_back_node(node.name)


def cluster_of(settings: Settings, pool: RayPool) -> ClusterSpec:
    """With the queues of the cluster file. Raises `UserError` where that cannot be read."""
    queues = read_cluster(settings.cluster).queues if settings.cluster else ()
    return ClusterSpec.model_construct(nodes=pool.nodes, queues=queues)


def main() -> None:
    """Until it is told to end."""
    logs.configure("ray pool")
    settings = Settings()
    control = HttpControl(settings.api_url(), read_secret(settings, "control").encode())
    service = RayPoolService(settings, control, PoolReports(settings), launchers.chosen(settings))
    while True:
        try:
            service.turn()
        except ElasticError as error:
            log.warning(f"the pool may be another now: {error}")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
