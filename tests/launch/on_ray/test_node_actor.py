"""What acts on a node, asked by coordinators: it answers those who mean this node as it is in the cluster now."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import CacheServerAddress, CoordinatorHeard, WorkerProcesses, decode
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray import node_actor
from elastic_core.launch.on_ray.node_actor import NodeActor
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.state.job_code import pinned_code
from elastic_core.state.memory_tier.cache_client import Access
from tests.launch.builders import wait_for
from tests.launch.on_ray.test_coordinator import SECONDS, Cluster, a_launch
from tests.launch.on_ray.test_coordinator import cluster as two_nodes

cluster = two_nodes


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeActor:
    monkeypatch.setattr(node_actor, "own_node_id", lambda: "second")  # which Ray alone could tell
    return NodeActor("n0", str(tmp_path))


def heard(home: Path) -> bool:
    return RunDir.of(home / "n0", 7).read(CoordinatorHeard) is not None


def test_a_turn_of_a_coordinator_is_noted(actor: NodeActor, tmp_path: Path) -> None:
    assert "error" not in actor.exchange("second", 7, {}, {})
    assert heard(tmp_path)


def test_a_coordinator_that_means_the_node_as_it_was_before_it_left_the_cluster_is_not_heard(
    actor: NodeActor, tmp_path: Path
) -> None:
    for answer in (actor.exchange("first", 7, {"letter": "x"}, {}), actor.start("first", {}, {}, {}, [], "", False)):
        assert answer == {"error": "node n0 is gone from the Ray cluster: it came again, as another node"}
    assert not heard(tmp_path)
    assert not RunDir.of(tmp_path / "n0", 7).path.exists()


def test_a_group_is_told_which_nodes_may_hold_copies_once_it_has_its_part(actor: NodeActor, tmp_path: Path) -> None:
    folder = RunDir.of(tmp_path / "n0", 7)
    actor.members(7, ["n0", "n1"])
    assert folder.read(Access) is None
    folder.create()
    folder.write(Access(tmp_path / "n0" / "memory", ("n0",), "job", b"key"))
    actor.members(7, ["n0", "n1"])
    access = folder.require(Access)
    assert (access.nodes, access.job, access.key) == (("n0", "n1"), "job", b"key")


def test_a_stop_while_a_part_is_being_started_holds_though_another_actor_hears_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, spec = a_launch(cluster, "sleep").to_plain(), cluster.nodes["n0"].spec.model_dump(mode="json")
    first, folder = NodeActor("n0", str(cluster.home)), RunDir.of(cluster.home / "n0", 7)
    with monkeypatch.context() as fetching:
        fetching.setattr(pinned_code, "fetch", lambda *_: NodeActor("n0", str(cluster.home)).stop(7, 30.0))
        first.start("id", plain, spec, {}, ["n0"], "logs", False)
    wait_for(folder.exit_report, SECONDS)
    assert folder.exit_report() == ExitReport(kind=ExitKind.STOPPED, error="it was stopped before it had begun")
    assert folder.read(WorkerProcesses) is None
    first.start("id", plain, spec, {}, ["n0"], "logs", True)  # the group has come to want the node again
    wait_for(lambda: cluster.worker("n0"), SECONDS)


def test_a_part_whose_start_failed_and_was_stopped_can_begin_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, spec = a_launch(cluster, "sleep").to_plain(), cluster.nodes["n0"].spec.model_dump(mode="json")
    actor = NodeActor("n0", str(cluster.home))

    def fail(*_: object) -> None:
        raise InfrastructureError("the store is away")

    with monkeypatch.context() as fetching:
        fetching.setattr(pinned_code, "fetch", fail)
        assert actor.start("id", plain, spec, {}, ["n0"], "logs", False) == {"error": "the store is away"}
    assert actor.end(7, 0.0, 1.0) == {"known": False, "alive": False, "exit": None}
    assert actor.start("id", plain, spec, {}, ["n0"], "logs", True) == {"alive": True}
    wait_for(lambda: cluster.worker("n0"), SECONDS)


def test_a_cache_server_that_has_died_comes_back_while_a_group_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_actor, "UPKEEP_SECONDS", 0.5)
    plain = a_launch(cluster, "sleep")
    launch = replace(plain, settings={**plain.settings, "node_memory_mb": 1}, memory_secret=token_hex(32))
    actor, spec = NodeActor("n0", str(cluster.home)), cluster.nodes["n0"].spec.model_dump(mode="json")
    assert actor.start("id", launch.to_plain(), spec, {}, ["n0"], "logs", False) == {"alive": True}

    def server() -> ProcessId | None:
        address = actor.exchange("id", 7, {}, {})["address"]
        return decode(CacheServerAddress, address).process if address is not None else None

    first = server()
    assert first is not None
    first.send(signal.SIGKILL)
    wait_for(lambda: (again := server()) is not None and again != first, SECONDS, pause=0.1)
