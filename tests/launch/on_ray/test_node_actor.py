"""What acts on a node, asked by coordinators: it answers those who mean this node as it is in the cluster now."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.host.messages import CoordinatorHeard
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray import node_actor
from elastic_core.launch.on_ray.node_actor import NodeActor
from elastic_core.state.memory_tier.cache_client import Access


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
