"""Whoever does not know a group's token takes no part in it, and once it has formed nobody gets a connection."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from elastic_core.errors import InfrastructureError
from elastic_core.host.rundir import RunDir
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.strangers import closed_afterwards, prove_peers
from tests.train import forked

WORLD = 3
TOKEN, OTHER = b"the token of the group", b"another one"


def forms(folder: str, rank: int) -> Group:
    return Group.form(RunDir(Path(folder)), rank, WORLD, torch.device("cpu"))


def proves(folder: str, rank: int, stranger: int) -> int:
    """0 for a rank that finds no stranger; else 10 plus the rank that it names."""
    group = forms(folder, rank)
    try:
        prove_peers(OTHER if rank == stranger else TOKEN, "the group")
    except InfrastructureError as error:
        return 10 + int(str(error).split("as rank ")[1][0])
    finally:
        group.close()
    return 0


def test_ranks_that_know_the_token_find_no_stranger(tmp_path: Path) -> None:
    ranks = [forked.start(proves, str(tmp_path), rank, WORLD, log=tmp_path / "log") for rank in range(WORLD)]
    assert forked.join(ranks) == [0] * WORLD, (tmp_path / "log").read_text()


def test_every_rank_names_the_one_that_does_not_know_it(tmp_path: Path) -> None:
    ranks = [forked.start(proves, str(tmp_path), rank, 2, log=tmp_path / "log") for rank in range(WORLD)]
    assert forked.join(ranks) == [12, 12, 10], (tmp_path / "log").read_text()


def says_nothing_new(folder: str, rank: int) -> int:
    """A proof for one group of ranks is none for another."""
    group = forms(folder, rank)
    try:
        prove_peers(TOKEN, "the group" if rank == 1 else "the ranks along data")
    except InfrastructureError:
        return 1
    finally:
        group.close()
    return 0


def test_a_proof_holds_for_the_group_that_it_names(tmp_path: Path) -> None:
    ranks = [forked.start(says_nothing_new, str(tmp_path), rank, log=tmp_path / "log") for rank in range(WORLD)]
    assert forked.join(ranks) == [1] * WORLD, (tmp_path / "log").read_text()


def lets_nobody_in(folder: str, rank: int) -> int:
    before = set(listening())
    group = forms(folder, rank)
    doors = set(listening()) - before
    assert doors, "gloo listens"
    for address in doors:
        assert address[0] == "127.0.0.1"
        with socket.socket() as stranger:
            stranger.settimeout(0.5)
            try:
                stranger.connect(address)
            except TimeoutError:
                continue
            return 1
    assert group.gather_bytes(b"%d" % rank) == [b"%d" % other for other in range(WORLD)]
    dist.barrier(dist.new_group(range(WORLD)))  # user code may make groups of its own
    group.close()
    return 0


def listening() -> list[tuple[str, int]]:
    """Where this process listens on the network, by the kernel's tables."""
    mine = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
            host, port = fields[1].split(":")
            found.append((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


def test_a_formed_group_takes_no_further_connection_and_goes_on(tmp_path: Path) -> None:
    ranks = [forked.start(lets_nobody_in, str(tmp_path), rank, log=tmp_path / "log") for rank in range(WORLD)]
    assert forked.join(ranks) == [0] * WORLD, (tmp_path / "log").read_text()


def test_what_is_connected_stays_so_and_older_listeners_stay_open() -> None:
    with ExitStack() as stack:
        older = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with closed_afterwards():
            newer = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            friend = stack.enter_context(socket.create_connection(newer.getsockname()))
        accepted = stack.enter_context(newer.accept()[0])
        friend.sendall(b"still here")
        assert accepted.recv(10) == b"still here"
        stack.enter_context(socket.create_connection(older.getsockname()))
        with pytest.raises(TimeoutError):
            socket.create_connection(newer.getsockname(), timeout=0.3)
