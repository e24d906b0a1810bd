"""When a node that Ray drains is empty. Calls to its actor are threads; actor, agents and workers are real."""

from __future__ import annotations

import threading
import time

import pytest

from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray.node_actor import coordinating
from elastic_core.launch.on_ray.pool import drain_node
from elastic_core.launch.on_ray.pool.drain_node import wait_until_empty
from elastic_core.launch.worker_logs.kept import KeptLogs
from elastic_core.settings import Settings
from tests.launch.builders import wait_for
from tests.launch.on_ray.test_coordinator import SECONDS, Cluster
from tests.launch.on_ray.test_coordinator import cluster as two_nodes
from tests.launch.on_ray.test_group_end import start

cluster = two_nodes


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_node, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(drain_node, "QUIET_SECONDS", 2.0)


def seconds_until_empty(cluster: Cluster, most: float) -> float | None:
    """None where it was not."""
    began = time.monotonic()
    return time.monotonic() - began if wait_until_empty("test", "n0", cluster.home, most) else None


def test_a_node_is_empty_once_nothing_was_seen_there_for_a_while(cluster: Cluster) -> None:
    took = seconds_until_empty(cluster, 60.0)
    assert took is not None
    assert took >= 2.0


def test_what_was_granted_before_and_starts_meanwhile_is_waited_for(cluster: Cluster) -> None:
    late = threading.Timer(1.0, start, [cluster])
    late.start()
    assert seconds_until_empty(cluster, 8.0) is None
    late.join()


def test_a_node_is_not_empty_while_a_groups_coordinator_is_there(cluster: Cluster) -> None:
    with coordinating(cluster.home / "n0", 7):
        assert seconds_until_empty(cluster, 3.0) is None
    assert seconds_until_empty(cluster, 60.0) is not None


def test_when_the_time_is_up_it_says_what_was_seen_last(cluster: Cluster) -> None:
    assert seconds_until_empty(cluster, 1.0) is not None


def test_of_jobs_that_go_with_their_node_the_end_of_what_their_ranks_there_printed_is_kept(cluster: Cluster) -> None:
    start(cluster)
    for node in cluster.nodes:
        wait_for(lambda node=node: RunDir.of(cluster.home / node, 7).read(WorkersByRank), SECONDS)
        drain_node.keep_logs("test", node, cluster.home)
    here, there = (KeptLogs.of(Settings(home=cluster.home / node)) for node in ("n0", "n1"))
    assert "does sleep" in here.log_of(7, 0).read(None, 1000).text
    assert "does sleep" in there.log_of(7, 1).read(None, 1000).text
    assert (here.ranks(7), there.ranks(7)) == (1, 2)
    with pytest.raises(FileNotFoundError):
        there.log_of(7, 0).read(None, 1000)


def test_a_node_that_does_not_say_that_it_has_kept_them_is_no_error(cluster: Cluster) -> None:
    cluster.away.add("n0")
    drain_node.keep_logs("test", "n0", cluster.home)
