"""A cache server towards whoever connects to it: what it does not keep takes nothing of the node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import CacheServerAddress
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.state.memory_tier import cache, handshakes
from elastic_core.state.memory_tier.cache import Memory
from elastic_core.state.memory_tier.cache_client import FAULTS, Access, CacheClient, new_file, seal, write_all
from elastic_core.state.memory_tier.cache_server import CacheServer, job_key
from elastic_core.state.memory_tier.channel import NONCE

SECRET = b"of the installation"
URI = "job/lineage-0/step-0000000001-epoch-1-a"
KEY = f"{URI}/shard-0.safetensors"


@pytest.fixture
def memory() -> Memory:
    return Memory(1 << 20, time.monotonic, lambda: 1 << 30)


@pytest.fixture
def server(tmp_path: Path, memory: Memory) -> Iterator[CacheServer]:
    made = CacheServer(tmp_path, "a", SECRET, memory)
    RunDir(tmp_path).write(made.address, "a")
    yield made
    made.close()


@pytest.fixture
def client(server: CacheServer, tmp_path: Path) -> Iterator[CacheClient]:
    made = CacheClient(Access(tmp_path, ("a",), "job", job_key(SECRET, "job")), "a", near=True)
    yield made
    made.close()


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_memory(size: int, *, sealed: bool = True) -> int:
    fd = new_file()
    write_all(fd, bytes(size))
    if sealed:
        seal(fd)
    return fd


ODD: dict[str, tuple[Callable[[], int], dict[str, str]]] = {
    "a file of the disk": (lambda: os.open(__file__, os.O_RDONLY), {"key": KEY}),
    "a device": (lambda: os.open("/dev/null", os.O_RDONLY), {"key": KEY}),
    "a file that could still change": (lambda: in_memory(100, sealed=False), {"key": KEY}),
    "a file of more than was reserved": (lambda: in_memory(101), {"key": KEY}),
    "a file without a name": (lambda: in_memory(100), {}),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_not_kept_leaves_neither_room_nor_a_descriptor_behind(
    client: CacheClient, memory: Memory, odd: str
) -> None:
    before = open_files()
    make, named = ODD[odd]
    fd = make()
    with suppress(*FAULTS), client.borrow() as borrowed:
        borrowed.ask({"op": "reserve", "uri": URI, "bytes": 100, "ahead": 0})
        assert memory.used == 100
        borrowed.channel.send_request(json.dumps({"op": "keep", **named}).encode())
        borrowed.channel.send_file(fd)
        borrowed.channel.receive_bytes()
    os.close(fd)
    client.close()
    wait_for(lambda: (memory.used, open_files()) == (0, before))
    assert memory.listed("job", URI) == {}


def test_of_what_is_kept_the_room_that_was_reserved_beyond_it_is_free_again(
    client: CacheClient, memory: Memory
) -> None:
    fd = in_memory(60)
    with client.borrow() as borrowed:
        borrowed.ask({"op": "reserve", "uri": URI, "bytes": 100, "ahead": 0})
        borrowed.keep(KEY, fd)
    os.close(fd)
    assert (memory.used, memory.listed("job", URI)) == (60, {KEY: 60})


def keep_empty_file(client: CacheClient, key: str) -> None:
    fd = in_memory(0)
    try:
        with client.borrow() as borrowed:
            borrowed.ask({"op": "reserve", "uri": key.rpartition("/")[0], "bytes": 0, "ahead": 1})
            borrowed.keep(key, fd)
    finally:
        os.close(fd)


def test_a_job_has_so_many_files_however_small_and_takes_no_other_jobs_descriptors(
    client: CacheClient, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 3)
    for number in range(3):
        keep_empty_file(client, f"{URI}/{number}")
    before = open_files()
    with pytest.raises(InfrastructureError, match="job job has 3 files of this checkpoint in the memory of the node"):
        keep_empty_file(client, f"{URI}/3")
    assert (len(memory.listed("job", URI)), open_files()) == (3, before)
    keep_empty_file(client, f"{URI}/2")  # again
    newer = URI.replace("01-epoch", "02-epoch")
    keep_empty_file(client, f"{newer}/0")
    assert (memory.listed("job", URI), memory.listed("job", newer)) == ({}, {f"{newer}/0": 0})


def test_a_job_has_so_many_connections_and_another_one_is_served_meanwhile(
    server: CacheServer, client: CacheClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._shares, "_most", 1)
    other = CacheClient(Access(tmp_path, ("a",), "other", job_key(SECRET, "other")), "a", near=True)
    with client.borrow() as held:
        held.ask({"op": "list", "uri": URI})
        with pytest.raises((OSError, EOFError)):
            client.ask(op="list", uri=URI)
        assert other.ask(op="list", uri=URI) == {}
    client.close()
    other.close()
    wait_for(lambda: asked(client) == {})


def connected(server: CacheServer, door: str) -> socket.socket:
    """Somebody who has shown no key."""
    if door == "port":
        return socket.create_connection((server.address.host, server.address.port))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + server.address.socket)
    return connection


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(10)
connection.connect("\\0" + sys.argv[1])
try:
    connection.sendall(b"\\x03\\x00job")
    sys.exit(len(connection.recv(100)))
except ConnectionError:
    sys.exit(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("worker_uid", "heard"), [(None, 0), (65533, 0), (65534, NONCE)])
def test_processes_of_other_unix_users_do_not_even_hear_a_nonce(
    tmp_path: Path, memory: Memory, worker_uid: int | None, heard: int
) -> None:
    server = CacheServer(tmp_path, "a", SECRET, memory, worker_uid=worker_uid)
    stranger = [sys.executable, "-c", STRANGER, server.address.socket]
    assert subprocess.run(stranger, check=False, timeout=30).returncode == heard
    server.close()


def say_slowly(connection: socket.socket) -> None:
    """The length of a name and forty bytes of it, in two seconds."""
    connection.sendall((1000).to_bytes(2, "little"))
    for _ in range(40):
        connection.sendall(b"j")
        time.sleep(0.05)


DOORS = ["socket", "port"]


@pytest.mark.parametrize("door", DOORS)
def test_who_shows_its_key_byte_by_byte_gets_no_more_time(
    server: CacheServer, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.5)
    with connected(server, door) as slow, pytest.raises(ConnectionError):
        say_slowly(slow)


@pytest.mark.parametrize("door", DOORS)
def test_so_many_may_show_their_keys_at_once_and_no_more(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setattr(handshakes, "MOST_HANDSHAKES", 2)
    server = CacheServer(tmp_path, "a", SECRET, memory)
    RunDir(tmp_path).write(server.address, "a")
    access = Access(tmp_path, ("a",), "job", job_key(SECRET, "job"))
    client, elsewhere = (CacheClient(access, "a", near=near) for near in (door == "socket", door != "socket"))
    idle = [connected(server, door) for _ in range(2)]
    with pytest.raises((OSError, EOFError)):
        client.ask(op="list", uri=URI)
    assert elsewhere.ask(op="list", uri=URI) == {}
    elsewhere.close()
    idle.pop().close()
    wait_for(lambda: asked(client) == {})
    idle.pop().close()
    client.close()
    server.close()


def asked(client: CacheClient) -> object:
    with suppress(*FAULTS):
        return client.ask(op="list", uri=URI)
    return None


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[socket.socket]:
    """Node "silent", which takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    address = CacheServerAddress.of(ProcessId.current(), socket="nobody", host="127.0.0.1", port=port)
    RunDir(tmp_path).write(address, "silent")
    yield listener
    listener.close()


def copiers() -> int:
    return sum("_copy" in thread.name for thread in threading.enumerate())


def test_however_often_a_job_commits_one_thread_fetches_copies_for_it_and_the_newest_is_fetched(
    tmp_path: Path, memory: Memory, client: CacheClient, silent: socket.socket
) -> None:
    other = CacheServer(tmp_path, "b", SECRET, Memory(1 << 20, time.monotonic, lambda: 1 << 30))
    RunDir(tmp_path).write(other.address, "b")
    there = CacheClient(Access(tmp_path, ("b",), "job", job_key(SECRET, "job")), "b", near=True)
    newest = URI.replace("step-0000000001", "step-0000000100")
    with there.borrow() as borrowed:
        borrowed.ask({"op": "reserve", "uri": newest, "bytes": 100, "ahead": 0})
        borrowed.keep(f"{newest}/shard-0.safetensors", in_memory(100))
    for step in range(1, 100):
        client.ask(op="committed", uri=URI.replace("step-0000000001", f"step-{step:010d}"), copy=["silent", "b"])
        assert copiers() <= 1
    client.ask(op="committed", uri=newest, copy=["b", "no-such-node", "../b"])
    assert copiers() <= 1
    silent.close()
    wait_for(lambda: client.ask(op="list", uri=newest) == {f"{newest}/shard-0.safetensors": 100}, 30.0)
    wait_for(lambda: copiers() == 0)
    there.close()
    other.close()
