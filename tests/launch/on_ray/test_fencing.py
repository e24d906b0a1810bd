"""Ray does not fence: what runs on a node that it has given up is ended by that node's agent, and keeps work away."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.host.messages import WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray.pool import drain_node
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports, RayPool
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.settings import Settings
from tests.e2e.platform import PATIENCE
from tests.launch.builders import SCRIPT, order, wait_for
from tests.launch.on_ray.test_ray_nodes import end_node
from tests.launch.ray_nodes import RayCluster, skip_without_ray
from tests.node_networks import skip_without_root

NODES = ("n0", "n1")
LEASE_SECONDS = 30.0 * PATIENCE
SECONDS = 60.0 * PATIENCE
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    skip_without_ray()
    cluster = RayCluster(slots=1)
    yield cluster
    for node in NODES:
        end_node(tmp_path / "nodes" / node)
    cluster.close()


def over_both() -> LaunchOrder:
    slots = tuple(Slot(node, 0, "cpu") for node in NODES)
    allocation = Allocation(slots=slots, global_batch=8, layout=Layout(data=2))
    return replace(order(), allocation=allocation, lease_seconds=LEASE_SECONDS)


def workers(settings: Settings, node: str) -> list[ProcessId]:
    known = RunDir.of(settings.node_home() / node, 7).read(WorkerProcesses)
    return [worker.process for worker in known.workers] if known else []


def test_a_group_goes_on_while_rays_head_is_away_for_longer_than_a_lease_and_than_ray_lets_nodes_wait_by_default(
    cluster: RayCluster, tmp_path: Path
) -> None:
    skip_without_root()
    cluster.add("n1", 1)  # it is asked to hold copies, so that the coordinator has questions to the head
    settings = cluster.settings(tmp_path, control_url="http://127.0.0.1:9", node_memory_mb=16)
    launcher = RayLauncher(settings, worker_command=(sys.executable, "-S", str(SCRIPT), "boundary"))
    launcher.start(replace(order(num_slots=1), lease_seconds=20.0))
    wait_for(lambda: workers(settings, "n0") and list(tmp_path.glob("nodes/n1/memory/n1.json")), SECONDS, pause=0.2)
    (worker,) = workers(settings, "n0")
    with cluster.head_away():
        time.sleep(70.0)  # nodes of Ray that are not told otherwise give their head up after 60
    assert worker.alive()
    wait_for(lambda: launcher.poll(7).alive, SECONDS, pause=0.5)
    assert cluster.ended() == []
    (group,) = launcher.groups()
    assert (group.origin_epoch, group.alive) == (7, True)
    launcher.stop(7, 20.0)
    wait_for(lambda: not launcher.poll(7).alive, SECONDS, pause=0.5)
    assert launcher.poll(7).exit.kind == "boundary"


def test_until_when_a_drained_node_is_there_the_pool_has_from_ray(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add("n1", 1)
    settings = cluster.settings(tmp_path, node_memory_mb=0)
    reports = PoolReports(settings)
    wait_for(lambda: (pool := reports.newest()) and len(pool.nodes) == 2, SECONDS, pause=0.5)
    options = ["--node", "n1", "--seconds", "600", "--namespace", settings.ray_namespace]
    command = [sys.executable, "-m", drain_node.__name__, *options, "--home", str(settings.node_home())]
    environ = {**cluster.environ, "RAY_ADDRESS": cluster.gcs_address}
    before = time.time()
    assert subprocess.run(command, env=environ, cwd=settings.project).returncode == 0
    found = reports.newest()
    assert found is not None
    assert found.draining == ("n1",)
    assert before + 600.0 <= found.deadlines["n1"] <= time.time() + 600.0


def test_a_silent_nodes_workers_end_with_the_lease_and_it_gets_no_work_before(
    cluster: RayCluster, tmp_path: Path
) -> None:
    cluster.add("n1", 1)
    settings = cluster.settings(tmp_path, control_url="http://127.0.0.1:9", node_memory_mb=0)
    reports = PoolReports(settings)

    def pool() -> RayPool:
        return reports.newest() or RayPool((), (), {})

    def names() -> set[str]:
        return {node.name for node in pool().nodes}

    wait_for(lambda: names() == set(NODES), SECONDS, pause=0.5)
    launcher = RayLauncher(settings, worker_command=(sys.executable, "-S", str(SCRIPT), "sleep"))
    launcher.start(over_both())
    wait_for(lambda: all(workers(settings, node) for node in NODES), SECONDS, pause=0.2)
    (here,), (there,) = workers(settings, "n0"), workers(settings, "n1")

    cluster.silence("n1")
    silent_at = time.monotonic()
    wait_for(lambda: names() == {"n0"}, 12.0 * PATIENCE, pause=0.5)
    known = time.monotonic() - silent_at
    assert there.alive()  # nobody of Ray has ended it
    cluster.kill("n1")
    cluster.add("n1", 1)
    unclean = {"n1": "processes of epochs 7 still run there"}
    wait_for(lambda: pool().unclean == unclean, LEASE_SECONDS, pause=0.5)
    assert names() == {"n0"}
    assert there.alive()
    wait_for(lambda: not there.alive(), LEASE_SECONDS + 10.0 * PATIENCE - (time.monotonic() - silent_at), pause=0.2)
    ended = time.monotonic() - silent_at
    wait_for(lambda: names() == set(NODES), SECONDS, pause=0.5)
    print(f"known after {known:.1f} s, its processes ended after {ended:.1f} s of a lease of {LEASE_SECONDS:g} s")

    wait_for(lambda: not launcher.poll(7).alive, SECONDS, pause=0.5)
    report = launcher.poll(7).exit
    assert report.kind == "infrastructure"
    assert "node n1 is gone from the Ray cluster" in report.error
    assert not here.alive()
