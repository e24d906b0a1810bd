"""A group whose coordinator has ended without a word: ended on every node, and its files with it."""

from __future__ import annotations

import os
import time

import pytest

from elastic_core.host.messages import ORDER
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray import group_end
from elastic_core.launch.on_ray.group_end import end
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from tests.launch.builders import wait_for
from tests.launch.on_ray.test_coordinator import NODES, SECONDS, Cluster, a_launch
from tests.launch.on_ray.test_coordinator import cluster as two_nodes

cluster = two_nodes
DAY = 86_400.0


def start(cluster: Cluster, lease_seconds: float = 90.0) -> None:
    """All parts of a group, without a coordinator."""
    launch = a_launch(cluster, "sleep", lease_seconds).to_plain()
    for node, known in cluster.nodes.items():
        actor, spec = cluster.actor_of("test", node, cluster.home), known.spec.model_dump(mode="json")
        assert actor.start.remote("id", launch, spec, {}, NODES, "logs", False).result() == {"alive": True}
    wait_for(lambda: all(cluster.worker(node) for node in NODES), SECONDS)


@pytest.mark.parametrize("forget", [True, False])
def test_once_nothing_is_left_of_it_its_orders_go_where_nobody_else_will_remove_them(
    cluster: Cluster, forget: bool
) -> None:
    start(cluster)
    report = end("test", 7, 0.0, cluster.home, unheard_after=90.0 if forget else None)
    assert report is not None
    assert report.kind is ExitKind.STOPPED
    assert [cluster.worker(node) for node in NODES if (worker := cluster.worker(node)) and worker.alive()] == []
    folders = [RunDir.of(cluster.home / node, 7) for node in NODES]
    assert [(folder.path / ORDER).exists() for folder in folders] == [not forget] * 2
    assert all(folder.exit_report() for folder in folders)


def test_a_node_whose_actor_hangs_has_nothing_left_once_its_agent_has_not_heard_its_coordinator(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(group_end, name, 5.0)
    start(cluster, lease_seconds=8.0)
    cluster.hung.add("n1")
    (hung,) = [worker for node in ["n1"] if (worker := cluster.worker(node))]
    assert end("test", 7, 0.0, cluster.home) is None  # its coordinator may be heard
    report = end("test", 7, 0.0, cluster.home, unheard_after=8.0)
    assert report is not None
    assert report.kind is ExitKind.STOPPED
    assert not hung.alive()


def test_what_ended_long_ago_is_removed_when_a_group_starts_on_the_node(cluster: Cluster) -> None:
    for epoch, days in ((3, 31), (5, 29)):
        folder = RunDir.of(cluster.home / "n0", epoch)
        folder.create()
        folder.write_exit(ExitReport(kind=ExitKind.FINISHED))
        os.utime(folder.path / "exit.json", (time.time() - days * DAY,) * 2)
    start(cluster)
    assert [path.name for path in sorted((cluster.home / "n0" / "run").iterdir())] == ["5", "7"]
    end("test", 7, 0.0, cluster.home)
