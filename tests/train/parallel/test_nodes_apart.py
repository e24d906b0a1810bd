"""Ranks on nodes with addresses of their own: they meet there and nowhere else, and strangers get as far as ever."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from elastic_core.domain import Layout
from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import Rendezvous
from elastic_core.host.network import namespaces
from elastic_core.host.rundir import RunDir
from elastic_core.state.memory_tier.channel import NONCE
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import PIPELINE, Places
from elastic_core.train.parallel.strangers import closed_afterwards
from tests.node_networks import NodeNamespaces, skip_without_namespaces
from tests.security.listeners import Listener, knock_as_nobody, listeners
from tests.train import forked

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def nodes() -> Iterator[NodeNamespaces]:
    skip_without_namespaces()
    with NodeNamespaces(3) as nodes:
        yield nodes


def meets(folder: str, rank: int, namespace: str, address: str) -> int:
    """Forms two groups, says where this process listens, and trains on until strangers have tried."""
    namespaces.enter(namespace)
    group = Group.form(RunDir(Path(folder)), rank, 2, CPU, address=address)
    beside = group.beside("another group")
    doors = [found for found in listeners([os.getpid()]) if found.kind != "unix" or "rendezvous" in found.host]
    Path(folder, f"doors-{rank}").write_text(json.dumps([(door.kind, door.host, door.port) for door in doors]))
    while not Path(folder, "tried").exists():
        time.sleep(0.05)
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=beside)
    assert tensor.tolist() == [3.0] * 3
    assert group.gather_bytes(b"%d" % rank) == [b"0", b"1"]
    group.close()
    return 0


def test_ranks_meet_at_their_nodes_own_addresses_and_strangers_hear_a_nonce(
    nodes: NodeNamespaces, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    ranks = [
        forked.start(meets, str(tmp_path), rank, name, address, log=log)
        for rank, (name, address) in enumerate(zip(nodes.names[:2], nodes.addresses[:2], strict=True))
    ]
    told = [tmp_path / f"doors-{rank}" for rank in range(2)]
    until(lambda: all(path.exists() and path.read_text() for path in told), log)
    doors = [[tuple(door) for door in json.loads(path.read_text())] for path in told]
    met = RunDir(tmp_path).require(Rendezvous)
    heard = knock_as_nobody([Listener(0, *door) for door in doors[0] + doors[1]], tmp_path, nodes.names[2])
    (tmp_path / "tried").touch()
    assert forked.join(ranks) == [0, 0], log.read_text()
    for rank, address in enumerate(nodes.addresses[:2]):
        assert {(kind, host) for kind, host, _ in doors[rank]} == {("tcp", address)}
    said = {(door.kind, door.host, door.port): answer for door, answer in heard.items()}
    store = ("tcp", met.host, met.port)
    assert store in doors[0], "rank 0 serves the store at its node's address, and on no socket in the run dir"
    assert len(said.pop(store) or b"") == NONCE
    assert set(said.values()) == {None}, "gloo's doors are closed"
    assert len(said) >= 4, "of two groups and two ranks"


def lies_on_both(folder: str, rank: int, namespace: str, address: str) -> int:
    namespaces.enter(namespace)
    group = Group.form(RunDir(Path(folder)), rank, 2, CPU, address=address)
    places = Places(group, Layout(pipeline=2))
    assert places.stage == rank
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=places.along(PIPELINE).get_group())
    assert tensor.tolist() == [3.0] * 3
    group.gather_bytes(b"done")
    group.close()
    return 0


def test_a_layout_over_nodes_has_its_groups_at_their_addresses(nodes: NodeNamespaces, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ranks = [
        forked.start(lies_on_both, str(tmp_path), rank, name, address, log=log)
        for rank, (name, address) in enumerate(zip(nodes.names[:2], nodes.addresses[:2], strict=True))
    ]
    assert forked.join(ranks) == [0, 0], log.read_text()


def is_lost(folder: str, namespace: str, address: str) -> int:
    namespaces.enter(namespace)
    try:
        Group.form(RunDir(Path(folder)), 0, 2, CPU, address=address)
    except InfrastructureError as error:
        Path(folder, "said").write_text(str(error))
        return 0
    return 1


def test_an_address_that_the_host_does_not_have_is_said(nodes: NodeNamespaces, tmp_path: Path) -> None:
    process = forked.start(is_lost, str(tmp_path), nodes.names[0], nodes.addresses[1], log=tmp_path / "log")
    assert forked.join([process]) == [0], (tmp_path / "log").read_text()
    assert f"has {nodes.addresses[1]} as its first address" in (tmp_path / "said").read_text()


def test_a_listener_that_is_wider_than_the_address_is_found_and_closed() -> None:
    with pytest.raises(InfrastructureError, match=r"listens at 0\.0\.0\.0"), closed_afterwards():
        wide = socket.create_server(("0.0.0.0", 0))
    with wide, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", wide.getsockname()[1]), timeout=0.3)


def until(condition, log: Path, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
