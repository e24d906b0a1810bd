"""What nodes of one group tell each other: what is new goes to all others, once, and what is not true any more away."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import (
    NodeWorkers,
    Rendezvous,
    SlotId,
    StandbyReady,
    StandbyRequest,
    WorkerProcess,
    WorkerProcesses,
)
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.on_ray.mailboxes import PostOffice, outgoing, put


@pytest.fixture
def boxes(tmp_path: Path) -> dict[str, RunDir]:
    found = {name: RunDir(tmp_path / name) for name in ("a", "b", "c")}
    for box in found.values():
        box.create()
    return found


def carry(post: PostOffice, boxes: dict[str, RunDir]) -> None:
    """A turn of a coordinator with each node."""
    for node, box in boxes.items():
        letters = post.due(node)
        put(box, letters)
        post.delivered(node, letters)
        post.collect(node, outgoing(box, node))


def test_what_rank_0_writes_comes_to_all_nodes_wherever_it_is(boxes: dict[str, RunDir]) -> None:
    post = PostOffice()
    for generation, node in enumerate(("a", "b", "b", "c")):
        boxes[node].write(Rendezvous("", b"token", generation, host="10.0.0.1", port=4))
        carry(post, boxes)
        carry(post, boxes)
        assert [box.require(Rendezvous).generation for box in boxes.values()] == [generation] * 3


def test_nothing_is_carried_twice(boxes: dict[str, RunDir]) -> None:
    post = PostOffice()
    boxes["a"].write(StandbyRequest(1, (SlotId("b", 0, "cpu"),)))
    carry(post, boxes)
    carry(post, boxes)
    assert [post.due(node) for node in boxes] == [{}, {}, {}]


def test_a_waiting_worker_is_known_elsewhere_until_it_is_gone(boxes: dict[str, RunDir]) -> None:
    post = PostOffice()
    boxes["b"].write(StandbyReady(*ProcessId.current(), "b:0"), 2)
    carry(post, boxes)
    carry(post, boxes)
    (seen,) = boxes["a"].read_each(StandbyReady)
    assert (seen.slot, seen.host, seen.alive()) == ("b:0", "b", True)
    boxes["b"].write(StandbyReady(os.getpid(), 1, "b:0"), 2)  # a process that began at another time is not there
    carry(post, boxes)
    carry(post, boxes)
    assert boxes["a"].read_each(StandbyReady) == []


def test_workers_of_a_node_that_has_left_are_gone(boxes: dict[str, RunDir]) -> None:
    post = PostOffice()
    boxes["b"].write(WorkerProcesses((WorkerProcess(5, 6, "b:1"),)))
    carry(post, boxes)
    carry(post, boxes)
    (seen,) = boxes["a"].read_each(NodeWorkers)
    assert [worker.slot for worker in seen.workers] == ["b:1"]
    post.leave("b")
    carry(post, {name: boxes[name] for name in ("a", "c")})
    assert boxes["a"].read_each(NodeWorkers) == []


@pytest.mark.parametrize("name", ["../spawn.json", "spawn.json", "exit.json", "waiting-1.json", "waiting-x@b.json"])
def test_no_other_file_can_be_put_into_a_mailbox(boxes: dict[str, RunDir], name: str) -> None:
    with pytest.raises(InfrastructureError, match="is no letter between nodes"):
        put(boxes["a"], {name: json.dumps({})})
