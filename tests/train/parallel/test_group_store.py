"""The store of a group: what torch asks of it, and that nobody gets a word out of it without the token."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistNetworkError, DistStoreError

from elastic_core.host.network.unix_sockets import reachable
from elastic_core.state.memory_tier.channel import MAC, NONCE
from elastic_core.train.parallel.group_store import GroupStoreServer, PeerStore
from elastic_core.train.parallel.store_doors import UnixDoor
from tests.control.scheduling.open_files import no_more_files
from tests.train import forked

TOKEN = b"the token of this group"
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / ("a-folder-with-a-name-that-no-socket-could-have" * 3)
    folder.mkdir(mode=0o700)
    return folder / "store.sock"


@pytest.fixture
def server(path: Path) -> Iterator[GroupStoreServer]:
    server = GroupStoreServer(UnixDoor(path), TOKEN, wait_seconds=5)
    yield server
    server.close()


@pytest.fixture(params=["rank 0", "peer", "peer under a prefix"])
def store(request: pytest.FixtureRequest, server: GroupStoreServer, path: Path) -> Iterator[Store]:
    peer = PeerStore(UnixDoor(path), TOKEN, wait_seconds=5)
    yield {"rank 0": server.store, "peer": peer, "peer under a prefix": PrefixStore("g", peer)}[request.param]
    peer.close()


def test_it_does_what_torch_asks_of_a_store(store: Store) -> None:
    store.set("a", b"\x00\xffx")
    assert store.get("a") == b"\x00\xffx"
    assert (store.check(["a"]), store.check(["a", "b"])) == (True, False)
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    assert store.compare_set("c", "", "first") == b"first"
    assert store.compare_set("c", "other", "second") == b"first"
    assert store.compare_set("c", "first", "second") == b"second"
    store.wait(["a", "n", "c"], timedelta(seconds=5))


def test_for_want_of_files_it_turns_nobody_away_for_ever(server: GroupStoreServer, path: Path) -> None:
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with reachable(path) as address, no_more_files():
        for stranger in strangers:
            stranger.connect(address)
        time.sleep(0.3)
    for stranger in strangers:
        stranger.close()
    peer = PeerStore(UnixDoor(path), TOKEN, wait_seconds=5)
    peer.set("a", b"1")
    assert server.store.get("a") == b"1"
    peer.close()


def test_a_key_that_does_not_come_in_time_is_an_error_and_the_store_goes_on(store: Store) -> None:
    with pytest.raises(DistStoreError):
        store.wait(["never"], timedelta(milliseconds=50))
    store.set("a", b"1")
    assert store.get("a") == b"1"


def test_who_waits_keeps_no_other_thread_of_its_process_waiting(server: GroupStoreServer, path: Path) -> None:
    peer = PeerStore(UnixDoor(path), TOKEN, wait_seconds=30)
    got: list[bytes] = []
    waiting = threading.Thread(target=lambda: got.append(peer.get("late")))
    waiting.start()
    peer.set("late", b"there")
    waiting.join()
    assert got == [b"there"]
    peer.close()


def test_keys_of_rank_0_and_of_its_peers_are_the_same(server: GroupStoreServer, path: Path) -> None:
    first, second = PeerStore(UnixDoor(path), TOKEN, 5), PeerStore(UnixDoor(path), TOKEN, 5)
    server.store.set("from 0", b"0")
    first.set("from 1", b"1")
    assert (first.get("from 0"), second.get("from 1"), server.store.get("from 1")) == (b"0", b"1", b"1")


def test_another_token_is_no_peer_and_another_server_is_no_rank_0(server: GroupStoreServer, path: Path) -> None:
    with pytest.raises(DistNetworkError, match="rank 0 cannot be reached"):
        PeerStore(UnixDoor(path), b"the token of the group before", 5)
    assert server.store.num_keys() == 0


def test_a_rank_0_that_does_not_know_the_token_gets_no_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process listens at the path: it hears the proof of the token, which is none of the token itself."""
    impostor = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(path.parent)
    impostor.bind(path.name)
    impostor.listen()
    heard: list[bytes] = []

    def answer() -> None:
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(bytes(NONCE))
            heard.append(connection.recv(NONCE + MAC, socket.MSG_WAITALL))
            connection.sendall(bytes(MAC))
            heard.append(connection.recv(1))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(DistNetworkError, match="does not know the secret"):
        PeerStore(UnixDoor(path), TOKEN, 5).set("a", b"1")
    thread.join()
    impostor.close()
    assert TOKEN not in heard[0]
    assert heard[1] == b""


def test_who_sends_anything_else_hears_a_nonce_and_no_more(
    server: GroupStoreServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store.set("a", b"secret")
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(path.name)
        stranger.sendall(b'{"op": "get", "key": "a"}'.ljust(NONCE + MAC))
        heard = b""
        while more := stranger.recv(4096):
            heard += more
    assert len(heard) == NONCE


def test_once_rank_0_has_left_its_peers_are_told(server: GroupStoreServer, path: Path) -> None:
    server.close()
    with pytest.raises(DistNetworkError, match="rank 0 cannot be reached"):
        PeerStore(UnixDoor(path), TOKEN, 5)
    assert not path.exists()


def connects_as_nobody(path: str) -> int:
    os.chdir(Path(path).parent)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(Path(path).name)
    except PermissionError:
        return 13
    return 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_unix_user_cannot_even_connect(server: GroupStoreServer, path: Path, tmp_path: Path) -> None:
    assert forked.join([forked.start(connects_as_nobody, str(path), log=tmp_path / "log")]) == [13]
