"""Which nodes of a Ray cluster are in the pool: those that are there, and clean."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic_core.launch.on_ray import journal
from elastic_core.launch.on_ray.pool.pool_watch import (
    FIRST_SECONDS,
    WAIT_SECONDS,
    PoolWatch,
    StrayQuestions,
    is_news,
)
from elastic_core.launch.on_ray.ray_cluster import NodeSilent, RayNode, node_spec, read_deadlines, read_nodes
from elastic_core.spec import NodeSpec


def node(name: str, node_id: str = "1") -> RayNode:
    return RayNode(NodeSpec(name=name, type="cpu", slots=2), node_id, "http://there/logs")


class Strays:
    """What nodes say runs there unheard, and how often they were asked."""

    def __init__(self, **of: Sequence[int] | Exception) -> None:
        self.of, self.asked = of, list[str]()

    def __call__(self, nodes: Sequence[RayNode]) -> dict[str, Sequence[int] | Exception]:
        self.asked += [node.spec.name for node in nodes]
        return {node.node_id: self.of.get(node.spec.name, ()) for node in nodes}


def names(pool: dict[str, object]) -> list[str]:
    return [entry["name"] for entry in pool["nodes"]]


def test_a_node_with_strays_gets_no_work_until_it_is_clean() -> None:
    strays = Strays(b=[7])
    watch, living = PoolWatch(strays), {"a": node("a"), "b": node("b", "2")}
    pool = watch.look(living, {})
    assert names(pool) == ["a"]
    assert pool["unclean"] == {"b": "processes of epochs 7 still run there"}
    strays.of.clear()
    assert names(watch.look(living, {})) == ["a", "b"]
    watch.look(living, {})
    assert strays.asked.count("b") == 2  # it is known by now


def test_a_node_that_comes_again_has_to_show_it_again() -> None:
    strays = Strays()
    watch = PoolWatch(strays)
    assert names(watch.look({"a": node("a")}, {})) == ["a"]
    strays.of["a"] = [3]
    assert names(watch.look({"a": node("a", "2")}, {})) == []


def test_what_is_known_of_a_node_holds_while_it_does_not_answer() -> None:
    strays, living = Strays(b=NodeSilent("pid 1")), {"b": node("b")}
    watch = PoolWatch(strays)

    def why(found: Sequence[int] | Exception) -> object:
        strays.of["b"] = found
        return watch.look(living, {})["unclean"]

    silent = {"b": "it does not say what runs there: pid 1"}
    assert [why(NodeSilent("pid 1")), why(NodeSilent("pid 2"))] == [silent, silent]
    running = {"b": "processes of epochs 7 still run there"}
    assert [why([7]), why(NodeSilent("pid 3")), why([7])] == [running] * 3
    assert why([]) == {}
    living["b"] = node("b", "2")
    assert why(NodeSilent("pid 4")) == {"b": "it does not say what runs there: pid 4"}


def test_a_node_that_does_not_say_is_not_clean() -> None:
    pool = PoolWatch(Strays(a=NodeSilent("no answer"))).look({"a": node("a")}, {})
    assert pool["unclean"] == {"a": "it does not say what runs there: no answer"}


def test_draining_nodes_are_named_and_stay_in_the_pool() -> None:
    living = {"a": node("a", "x"), "b": node("b", "y")}
    pool = PoolWatch(Strays()).look(living, {"y": None, "another": None})
    assert (names(pool), pool["draining"], pool["deadlines"]) == (["a", "b"], ["b"], {})


def test_until_when_a_draining_node_is_there_is_said_where_ray_knows_it() -> None:
    living = {"a": node("a", "x"), "b": node("b", "y")}
    draining = read_deadlines({"y": 1_800_000_000_250, "x": 0})
    pool = PoolWatch(Strays()).look(living, draining)
    assert (pool["draining"], pool["deadlines"]) == (["a", "b"], {"b": 1_800_000_000.25})


def test_slots_types_and_prices_come_of_labels_and_resources() -> None:
    labels = {"elastic.node": "n7", "elastic.price": "2.5", "ray.io/node-id": "1"}
    assert node_spec(labels, {"slot:h200": 8.0, "CPU": 0.0}, "10.0.0.7") == NodeSpec(
        name="n7", type="h200", slots=8, price_per_slot_hour=2.5, address="10.0.0.7"
    )
    assert node_spec(labels, {"slot:cpu": 2.0}, "127.0.0.1").address is None
    assert node_spec({}, {"slot:cpu": 2.0}, "10.0.0.7") is None
    assert node_spec(labels, {"CPU": 4.0}, "10.0.0.7") is None


def test_a_node_that_does_not_answer_yet_is_asked_once_and_keeps_nobody_waiting() -> None:
    asked, answers, waited = list[str](), dict[str, Sequence[int]](), list[float]()

    def ask(node: RayNode) -> str:
        asked.append(node.spec.name)
        return f"{node.spec.name}/{node.node_id}"

    def ready(questions: Sequence[Any], seconds: float) -> Sequence[Any]:
        waited.append(seconds)
        return [question for question in questions if question in answers]

    strays = StrayQuestions(ask, ready, answers.__getitem__)
    watch, living = PoolWatch(strays), {"a": node("a", "1"), "b": node("b", "2")}
    answers["a/1"] = []
    for _ in range(2):
        pool = watch.look(living, {})
        assert names(pool) == ["a"]
        assert pool["unclean"] == {"b": "it does not say what runs there: it has not answered yet"}
    answers["b/2"] = []
    assert names(watch.look(living, {})) == ["a", "b"]
    assert asked == ["a", "b"]
    assert max(waited) < 1.0


def test_a_look_waits_for_all_nodes_together_however_many_do_not_answer() -> None:
    def ready(_questions: Sequence[Any], seconds: float) -> Sequence[Any]:
        time.sleep(seconds)
        return []

    watch = PoolWatch(StrayQuestions(lambda node: node.node_id, ready))
    began = time.monotonic()
    pool = watch.look({name: node(name, name) for name in map("n{}".format, range(50))}, {})
    assert len(pool["unclean"]) == 50
    assert time.monotonic() - began < 10 * WAIT_SECONDS


def test_a_watch_that_has_just_begun_leaves_out_no_node_that_is_slow_to_answer() -> None:
    slow = PoolWatch(Strays(b=NodeSilent("it has not answered yet"))).look({"a": node("a"), "b": node("b", "2")}, {})
    all_of_it = PoolWatch(Strays()).look({"a": node("a"), "b": node("b", "2")}, {})
    assert [is_news(slow, None, 1.0), is_news(slow, None, FIRST_SECONDS + 1)] == [False, True]
    assert is_news(all_of_it, None, 1.0)
    assert is_news(slow, all_of_it, 1.0)
    assert not is_news(slow, slow, FIRST_SECONDS + 1)


def test_what_is_kept_of_a_pools_words_is_bounded_and_the_last_of_them_hold(tmp_path: Path) -> None:
    said = "from elastic_core.launch.on_ray.journal import *\nfor look in range(100): say_last('pool', [look] * 3000)"
    path = tmp_path / "driver.log"
    with path.open("ab") as output:  # as Ray opens it
        subprocess.run([sys.executable, "-c", said], stdout=output, check=True)
    assert path.stat().st_size < 2 * journal.MOST_BYTES
    assert journal.last(path.read_text(), "pool") == [99] * 3000


def ray_entry(name: str, slot: str = "cpu", price: str = "1", *, alive: bool = True) -> dict[str, object]:
    """A node as `ray.nodes()` lists it, with what is read of it."""
    return {
        "NodeID": f"id-{name}", "Alive": alive, "NodeManagerAddress": "10.0.0.7", "DashboardAgentListenPort": 52365,
        "Labels": {"elastic.node": name, "elastic.price": price}, "Resources": {f"slot:{slot}": 2.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (ray_entry("b", slot="H200"), "type is 'H200'"),
        (ray_entry("GPU01"), "name is 'GPU01'"),
        (ray_entry("b", price=""), "price_per_slot_hour is ''"),
        (ray_entry("b", price="inf"), "price_per_slot_hour is 'inf'"),
    ],
)
def test_a_mislabelled_node_is_passed_over_and_said_with_the_reason(wrong: dict[str, Any], why: str) -> None:
    living, mislabelled = read_nodes([ray_entry("a"), wrong, ray_entry("gone", price="", alive=False)])
    pool = PoolWatch(Strays()).look(living, {}, mislabelled)
    assert names(pool) == ["a"]
    assert list(pool["mislabelled"]) == [wrong["Labels"]["elastic.node"]]
    assert all(said.startswith(f"it is mislabelled: {why} (") for said in pool["mislabelled"].values())
