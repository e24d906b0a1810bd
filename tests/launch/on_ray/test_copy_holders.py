"""Which nodes outside of a group are asked to hold copies: those that its ranks have copies made on, and no others."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.launch.on_ray import copy_holders, ray_cluster
from elastic_core.launch.on_ray.copy_holders import CopyHolders
from elastic_core.launch.on_ray.ray_cluster import Head, NodeSilent, RayNode
from elastic_core.launch.on_ray.sealed_order import GroupLaunch
from elastic_core.spec import NodeSpec
from elastic_core.state.memory_tier.cached_store import holders
from tests.builders import a_spec
from tests.launch.builders import order, wait_for
from tests.launch.on_ray.test_coordinator import answer, ready

TURN_SECONDS = 1.1  # after which it is looked again who is to be told and asked


class Cluster:
    """What Ray's head says of nodes, and the holders of a job's copies in it."""

    def __init__(self) -> None:
        self.nodes: dict[str, RayNode] = {}

    def holders(self, copies: int, *names: str) -> CopyHolders:
        self.have(*names)
        spec = a_spec(checkpoints={"memory_copies": copies})
        launch = GroupLaunch(order=replace(order(), spec=spec), settings={}, worker_command=(), memory_secret="00")
        return CopyHolders(launch, Head("tests", Path("/nodes"), self.nodes))

    def have(self, *names: str) -> None:
        self.nodes = {name: RayNode(NodeSpec(name=name, type="cpu", slots=1), name, "http://there") for name in names}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(ray_cluster, "living_nodes", lambda: cluster.nodes)
    monkeypatch.setattr(ray_cluster, "actor_of", lambda *_: None)  # nobody is asked here
    monkeypatch.setattr(ray_cluster, "ready", ready)
    monkeypatch.setattr(ray_cluster, "answer", answer)
    return cluster


class Actor:
    """A node's, which only notes who may hold copies. `away`: it is just starting again."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.members, self.away = self, False

    def remote(self, _origin_epoch: int, nodes: list[str]) -> Future[None]:
        self.told.append(nodes)
        question = Future[None]()
        if self.away:
            question.set_exception(NodeSilent("the actor is restarting"))
        else:
            question.set_result(None)
        return question


@pytest.mark.parametrize(
    ("group", "copies", "wanted"),
    [
        (["b"], 1, {"a"}),  # a job on one node, whose loss would take all of it
        (["b"], 2, {"a", "c"}),
        (["a", "b"], 1, set()),  # they hold each other's
        (["a", "b"], 2, {"c"}),
        (["a", "b", "c"], 2, set()),
        (["b"], 0, set()),
    ],
)
def test_a_ring_that_leads_out_of_the_group_names_its_holders(
    cluster: Cluster, group: list[str], copies: int, wanted: set[str]
) -> None:
    members = ("a", "b", "c")
    assert cluster.holders(copies, *members).wanted(group) == wanted
    ring = holders(group, members, copies)  # by which the ranks have their copies made
    assert wanted == {name for names in ring.values() for name in names} - set(group)


def test_a_node_alone_has_nobody_to_ask(cluster: Cluster) -> None:
    assert cluster.holders(2, "a").wanted(["a"]) == set()


def test_a_job_that_began_alone_has_its_copies_on_the_node_that_comes_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_holders, "FOLLOW_SECONDS", 0.0)
    holders, own = cluster.holders(1, "b"), Actor()
    holders.turn({"b": own}, {})
    assert own.told == [["b"]]
    cluster.have("b", "c")
    wait_for(lambda: holders.wanted(["b"]) == {"c"})
    wait_for(lambda: holders.turn({"b": own}, {}) or own.told == [["b"], ["b", "c"]])


def test_who_may_hold_copies_is_told_again_until_it_was_heard(cluster: Cluster) -> None:
    holders, own = cluster.holders(1, "b"), Actor()
    own.away = True
    holders.turn({"b": own}, {})
    own.away = False
    wait_for(lambda: holders.turn({"b": own}, {}) or len(own.told) == 2)
    assert own.told == [["b"], ["b"]]


def test_a_part_that_begins_again_is_told_again(cluster: Cluster) -> None:
    holders, own = cluster.holders(1, "b", "c"), Actor()
    holders.turn({"b": own}, {})
    time.sleep(TURN_SECONDS)
    holders.turn({"b": None}, {})  # it is being started, with a list of its own
    assert own.told == [["b", "c"]]
    time.sleep(TURN_SECONDS)
    holders.turn({"b": own}, {})
    assert own.told == [["b", "c"]] * 2
