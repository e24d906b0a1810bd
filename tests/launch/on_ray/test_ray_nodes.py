"""Jobs over several Ray nodes: they grow and shrink over nodes in their processes, and outlive a node that is lost.

The nodes are raylets of this machine, each with run dirs, agents and cache servers of its own. Ledger, control API,
launcher and the service of the pool are real; a thread does what Airflow's tasks do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic_core.errors import ElasticError
from elastic_core.host import fork_client
from elastic_core.host.messages import CacheServerAddress, WorkerProcesses
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.rundir import RunDir
from elastic_core.launch import launchers
from elastic_core.launch.on_ray.pool import drain_node
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports
from elastic_core.protocol.records import SegmentStatus
from elastic_core.services.ray_pool import RayPoolService
from elastic_core.settings import Settings
from tests.e2e.platform import PATIENCE
from tests.launch.airflowless import ApiThread, Platform, settings_for
from tests.launch.ray_nodes import RayCluster, skip_without_ray
from tests.node_networks import addresses, skip_without_root
from tests.security.listeners import listeners

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]
SECONDS = 120.0 * PATIENCE
NODES = ("n0", "n1", "n2")
SHARED, OWN = "one address", "own addresses"
wherever_nodes_are = pytest.mark.parametrize("cluster", [SHARED, OWN], indirect=True)


class RayPlatform(Platform):
    """With the service of the pool."""

    def __init__(self, settings: Settings, api: ApiThread) -> None:
        super().__init__(settings, api)
        self.launcher = launchers.chosen(settings)
        self._service = RayPoolService(settings, self.control, PoolReports(settings), self.launcher)
        self._threads.append(threading.Thread(target=self._follow))

    def _follow(self) -> None:
        while not self._closed.wait(1.0):
            try:
                self._service.turn()
            except ElasticError as error:
                print(f"pool: {error}")

    def workers(self, origin_epoch: int) -> dict[str, int]:
        """Pids of a group's workers over all nodes, by slot."""
        boxes = [RunDir.of(self.settings.node_home() / node, origin_epoch) for node in NODES]
        known = [box.read(WorkerProcesses) for box in boxes if box.path.exists()]
        return {worker.slot: worker.pid for workers in known if workers for worker in workers.workers}

    def on(self, job_id: str, slots: int) -> SegmentStatus:
        """The segment on so many slots, once it has taken steps there."""

        def trains() -> SegmentStatus | None:
            job = self.control.job(job_id)
            segment = self.control.segment(job.segment_id)
            here = segment.allocation is not None and segment.allocation.num_slots == slots
            return segment if here and segment.started_at and job.step > (segment.start_step or 0) else None

        return self.until(trains, bool, SECONDS)

    def memory_logs(self) -> str:
        kept = sorted(self.settings.node_home().glob("*/memory/*.log"))
        return "\n".join(f"== {path}\n{path.read_text()[-2000:]}" for path in kept)

    def logs(self) -> str:
        kept = sorted(self.settings.node_home().glob("*/run/*/logs/*.log"))
        return "\n".join(f"== {path}\n{path.read_text()[-2000:]}" for path in kept)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    """Of nodes that share this machine's address; where a test says so, of nodes that have their own."""
    skip_without_ray()
    with ExitStack() as places:
        own = getattr(request, "param", SHARED) == OWN
        if own:
            skip_without_root()
        cluster = RayCluster(slots=2, addresses=places.enter_context(addresses(NODES)) if own else {})
        yield cluster
        for node in NODES:
            end_node(tmp_path / "nodes" / node)
        cluster.close()


@pytest.fixture
def there(cluster: RayCluster, tmp_path: Path, ledger_url: str) -> Iterator[RayPlatform]:
    local = settings_for(tmp_path, node_memory_mb=64, heartbeat_seconds=0.5, lease_seconds=60.0)
    settings = cluster.settings(tmp_path, **local.model_dump(
        include={"project", "tasks", "control_url", "lease_seconds", "heartbeat_seconds", "grace_seconds",
                 "node_memory_mb", "policy"}))  # fmt: skip
    with RayPlatform(settings, ApiThread(ledger_url, settings)) as platform:
        platform.until(lambda: pool_of(platform), bool, SECONDS)  # no job is admitted before
        yield platform


def end_node(home: Path) -> None:
    """All of a node's processes but Ray's own: what is lost with a machine."""
    fork_client.stop(home)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            seen = (path / "cmdline").read_bytes() + (path / "environ").read_bytes() + (path / "maps").read_bytes()
            if f"{home}/".encode() in seen and int(path.name) != os.getpid():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


def pool_of(there: RayPlatform) -> set[str]:
    return {node.name for node in there.control.nodes() if node.present}


def assert_meets_at_its_nodes(there: RayPlatform, cluster: RayCluster, origin_epoch: int) -> None:
    """A group of several nodes: the pool has each node's address, and there the ranks and the cache server listen, and
    nowhere else on the network. There its agent of Ray answers who reads logs."""
    pool = PoolReports(there.settings).known()
    assert pool is not None
    known = {node.name: node.address or LOOPBACK for node in pool.nodes}
    assert known == {**known, **{name: cluster.addresses[name] for name in known if name in cluster.addresses}}
    workers = there.workers(origin_epoch)
    for slot, pid in workers.items():
        node = slot.partition(":")[0]
        hosts = {listener.host for listener in listeners([pid]) if listener.kind == "tcp"}
        assert hosts == {known[node]}, f"{slot} listens at {hosts}"
        server = RunDir(there.settings.node_home() / node / "memory").require(CacheServerAddress, node)
        assert (server.host, server.process.alive()) == (known[node], True)
    assert there.launcher.ranks_with_logs(origin_epoch) == len(workers)
    for rank in range(len(workers)):
        there.launcher.log_of(origin_epoch, rank).read(None, 1000)  # raises where the node does not answer


def test_a_job_trains_and_finishes(there: RayPlatform) -> None:
    there.submit("plain", slots=(2, 2), samples=480)
    assert there.wait("plain", 2 * SECONDS).samples_read == 480
    (group,) = there.control.groups_of("plain")
    there.until(lambda: there.launcher.poll(group.origin_epoch), lambda status: not status.alive, SECONDS)
    assert there.launcher.poll(group.origin_epoch).exit.kind == "boundary"
    assert not (there.home / "run").exists()


@wherever_nodes_are
def test_a_job_grows_over_nodes_and_shrinks_and_its_surviving_workers_keep_their_processes(
    there: RayPlatform, cluster: RayCluster
) -> None:
    there.until(lambda: pool_of(there), lambda names: names == {"n0"}, SECONDS)
    there.submit("wide", slots=(2, 4), samples=16_000, checkpoints={"interval_steps": 20})
    first = there.on("wide", 2)
    assert first.epoch is not None
    alone = there.workers(first.epoch)
    assert set(alone) == {"n0:0", "n0:1"}

    cluster.add("n1", 1)
    cluster.add("n2", 1)
    grown = there.on("wide", 4)
    wide = there.workers(first.epoch)
    assert (grown.handed_over, grown.attempt) == (True, 0)
    assert set(wide) == {"n0:0", "n0:1", "n1:0", "n2:0"}
    assert alone.items() <= wide.items()
    assert_meets_at_its_nodes(there, cluster, first.epoch)

    there.submit("other", slots=(2, 2), samples=960)
    shrunk = there.on("wide", 2)
    assert (shrunk.handed_over, shrunk.attempt) == (True, 0)
    there.until(
        lambda: there.workers(first.epoch), lambda left: len(left) == 2 and left.items() <= wide.items(), SECONDS
    )
    there.wait("other", SECONDS)
    assert there.wait("wide", 4 * SECONDS).samples_read == 16_000
    assert len(there.control.groups_of("wide")) == 1


def drained(there: RayPlatform, cluster: RayCluster, node: str) -> int:
    """Exit code of the command by which its notice is passed on."""
    settings = there.settings
    options = ["--node", node, "--seconds", f"{SECONDS:.0f}", "--namespace", settings.ray_namespace]
    command = [sys.executable, "-m", drain_node.__name__, *options, "--home", str(settings.node_home())]
    environ = {**cluster.environ, "RAY_ADDRESS": cluster.gcs_address}
    return subprocess.run(command, env=environ, cwd=settings.project).returncode


def test_a_drained_node_takes_nothing_along_though_the_group_had_begun_there(
    there: RayPlatform, cluster: RayCluster
) -> None:
    there.submit("stays", slots=(2, 2), samples=96_000)
    there.on("stays", 2)
    cluster.add("n1", 2)
    there.submit("moves", slots=(2, 4), samples=64_000, checkpoints={"interval_steps": 50})
    first = there.on("moves", 2)
    assert first.allocation is not None
    assert {slot.node for slot in first.allocation.slots} == {"n1"}
    there.control.cancel("stays", "to make room")
    there.on("moves", 4)

    assert drained(there, cluster, "n1") == 0
    cluster.kill("n1")
    end_node(there.settings.node_home() / "n1")
    after = there.on("moves", 2)
    assert after.allocation is not None
    assert {slot.node for slot in after.allocation.slots} == {"n0"}
    there.until(lambda: there.control.job("moves").step, lambda step: step > (after.start_step or 0) + 20, SECONDS)
    assert [segment.attempt for segment in there.control.segments("moves")] == [0] * (after.index + 1)
    there.control.cancel("moves", "the test is over")


@wherever_nodes_are
def test_a_job_outlives_a_lost_node_and_reads_nothing_from_the_store(there: RayPlatform, cluster: RayCluster) -> None:
    cluster.add("n1", 2)
    there.until(lambda: pool_of(there), lambda names: names == {"n0", "n1"}, SECONDS)
    there.submit("lasts", slots=(2, 4), samples=16_000, checkpoints={"interval_steps": 20})
    before = there.on("lasts", 4)
    there.until(lambda: there.control.job("lasts").step, lambda step: step > 40, SECONDS)
    (group,) = there.control.groups_of("lasts")
    assert_meets_at_its_nodes(there, cluster, group.origin_epoch)
    lost_at = time.monotonic()
    cluster.kill("n1")
    end_node(there.settings.node_home() / "n1")
    there.until(lambda: pool_of(there), lambda names: names == {"n0"}, SECONDS)
    known = time.monotonic() - lost_at
    after = there.on("lasts", 2)
    print(f"known after {known:.1f} s, trains again after {time.monotonic() - lost_at:.1f} s")
    assert after.attempt + after.index > before.attempt + before.index
    restored = there.until(lambda: there.control.job("lasts").last_restore, bool, SECONDS)  # told with a checkpoint
    assert restored["restored_from_store_bytes"] == 0
    there.control.cancel("lasts", "the test is over")


def test_a_job_on_one_node_outlives_it_by_the_copies_that_another_holds(
    there: RayPlatform, cluster: RayCluster
) -> None:
    there.submit("stays", slots=(2, 2), samples=96_000)  # on Ray's head, which is not to be lost
    there.on("stays", 2)
    cluster.add("n1", 2)
    there.submit("alone", slots=(2, 2), samples=32_000, checkpoints={"interval_steps": 100})
    before = there.on("alone", 2)
    assert before.allocation is not None
    assert {slot.node for slot in before.allocation.slots} == {"n1"}
    there.until(lambda: len(there.control.checkpoints("alone")), lambda count: count > 2, SECONDS)
    there.control.cancel("stays", "to make room")
    cluster.kill("n1")
    end_node(there.settings.node_home() / "n1")
    there.until(lambda: pool_of(there), lambda names: names == {"n0"}, SECONDS)

    def moved() -> bool:
        held = there.control.segment(before.segment_id).allocation
        return held is not None and {slot.node for slot in held.slots} == {"n0"}

    there.until(moved, bool, SECONDS)
    there.on("alone", 2)
    restored = there.until(lambda: there.control.job("alone").last_restore, bool, SECONDS)
    assert restored["restored_from_store_bytes"] == 0, there.memory_logs()
    there.control.cancel("alone", "the test is over")
