"""A service of installations on Ray: the ledger's pool is that of the cluster, and a lost node is known at once.

Nodes, types, slots and prices come of Ray, queues of the cluster file. A node that Ray drains is set aside, so that
jobs leave it at a boundary, before the drain's deadline where it has one, and taken back when it is not drained any
more: which those are the ledger says, so that it does not matter whether this service was started again meanwhile.
After a loss dead groups are looked for until the ledger has heard of them all: the coordinator of some may have been on
that node.

A cluster without any node of ours is believed once Ray has said so for `EMPTY_SECONDS` without a break: a head that is
started anew knows no node for a moment. An error is a break, since a head that is away says nothing of its nodes, and
so are nodes that are there and not clean yet. Mislabelled ones are none: they will not be of the pool as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

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
from elastic_core.spec import PresentCluster

log = logs.get_logger("elastic_core.services.ray_pool")
LOOK_SECONDS = 1.0
AFTER_LOSS_SECONDS = 120.0  # that dead groups are looked for
EMPTY_SECONDS = 10.0
SAME_SECONDS = 1.0  # by which two readings of one deadline may differ
DRAINED = "Ray drains it"


class RayPoolService:
    """`clock`: monotonic seconds."""

    def __init__(
        self, settings: Settings, control: HttpControl, reports: PoolReports, launcher: Launcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings, self._control, self._reports, self._launcher = settings, control, reports, launcher
        self._clock = clock
        self._told: tuple[object, ...] = ()  # what the ledger knows of the pool
        self._warned: dict[str, str] = {}
        self._empty_since: float | None = None
        self._look_until = 0.0

    def turn(self) -> None:
        """Bring the ledger up to what Ray says. Raises `ElasticError` where one of the two does not answer."""
        empty_since, self._empty_since = self._empty_since, None
        pool = self._reports.newest()
        if pool is not None and not pool.nodes and not pool.unclean:
            self._empty_since = self._clock() if empty_since is None else empty_since
        is_empty = self._empty_since is not None and self._clock() - self._empty_since >= EMPTY_SECONDS
        if pool is not None:
            self._warn_of(pool.left_out())
        if pool is not None and _told_of(pool) != self._told and (pool.nodes or is_empty):
            self._apply(pool)
        if self._clock() < self._look_until:
            reconcile_host(self._control, self._launcher, SteadyClock(self._settings.home))

    def _warn_of(self, left_out: dict[str, str]) -> None:
        for node, why in left_out.items():
            if self._warned.get(node) != why:
                log.warning(f"node {node} gets no work yet: {why}")
        self._warned = left_out

    def _apply(self, pool: RayPool) -> None:
        acting = self._control.acting(at_host(Way.CLI))
        before = {node.name for node in acting.nodes() if node.present}
        if before - {node.name for node in pool.nodes}:  # said first: who has to try again finds them lost already
            self._look_until = self._clock() + AFTER_LOSS_SECONDS
        acting.set_cluster(cluster_of(self._settings, pool))
        self._agree_on_drained(acting, frozenset(pool.draining), pool.deadlines)
        self._told = _told_of(pool)
        log.info(f"the pool has {', '.join(node.name for node in pool.nodes) or 'no node any more'}")

    def _agree_on_drained(self, acting: HttpControl, draining: frozenset[str], deadlines: Mapping[str, float]) -> None:
        """Nodes that were set aside for another reason stay so, drained or not; when they go is told of them, too."""
        apart = SteadyClock(self._settings.home)() - time.time()  # Ray goes by the wall clock, which may be set
        for node in acting.nodes():
            at = deadlines[node.name] + apart if node.name in deadlines else None
            is_news = at is not None and (node.leaves_at is None or abs(at - node.leaves_at) > SAME_SECONDS)
            if node.name in draining and (node.set_aside_reason is None or is_news):
                acting.set_aside_node(node.name, DRAINED, at)
            elif node.name not in draining and node.set_aside_reason == DRAINED:
                acting.take_back_node(node.name)


def _told_of(pool: RayPool) -> tuple[object, ...]:
    return pool.nodes, pool.draining, pool.deadlines


def cluster_of(settings: Settings, pool: RayPool) -> PresentCluster:
    """With the queues of the cluster file. Raises `UserError` where that cannot be read."""
    queues = read_cluster(settings.cluster).queues if settings.cluster else ()
    return PresentCluster.model_construct(nodes=pool.nodes, queues=queues)


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
