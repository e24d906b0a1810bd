"""State that leaves the machine: nobody on the wire reads it, nobody between the ends is taken for one of them.

Machines are played on loopback: what is told apart by its address (`is_loopback`) is told to be none.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.rundir import RunDir
from elastic_core.spec import parse_cluster_spec
from elastic_core.state.layout.boxes import Box
from elastic_core.state.memory_tier import encryption, node_addresses
from elastic_core.state.memory_tier.cache import Memory
from elastic_core.state.memory_tier.cache_client import Access, CacheClient, new_file, seal
from elastic_core.state.memory_tier.cache_server import CacheServer, job_key
from elastic_core.state.reshard.memories import Part
from elastic_core.state.reshard.peers import Address, PeerSource, RangeServer

SECRET = b"of this change"
WEIGHTS = torch.frombuffer(bytearray(b"canary of a weight " * 64), dtype=torch.uint8)
BOX = Box((0,), (len(WEIGHTS),))
KEY = "job/lineage-0/step-0000000001-epoch-1-a/rank0.safetensors"
FOREIGN = "192.0.2.1"  # TEST-NET-1: of no machine


@pytest.fixture
def between_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_addresses, "is_loopback", lambda _: False)


@contextmanager
def wire(server: Address, alter: Callable[[bytes], bytes] = lambda data: data) -> Iterator[tuple[Address, list[bytes]]]:
    """What carries bytes to the server and back, and keeps a copy; `alter` those that come from the server."""
    seen: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        try:
            while data := source.recv(1 << 16):
                seen.append(data)
                target.sendall(change(data))
        except OSError:
            pass
        target.close()

    def serve() -> None:
        try:
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(server)
                for pair in ((near, far, bytes), (far, near, alter)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()
        except OSError:
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname(), seen


def read_weights(address: Address, secret: bytes = SECRET) -> torch.Tensor:
    out = torch.zeros_like(WEIGHTS)
    peer = PeerSource(address, secret)
    peer.read("w", BOX, out)
    peer.close()
    return out


@pytest.mark.parametrize("encrypted", [True, False])
def test_what_goes_to_a_peer_cannot_be_read_on_the_wire(encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it encrypted on loopback: without that the test would show nothing."""
    monkeypatch.setattr(node_addresses, "is_loopback", lambda _: not encrypted)
    with RangeServer({"w": (Part(BOX, WEIGHTS),)}, SECRET) as server, wire(server.address) as (address, seen):
        assert torch.equal(read_weights(address), WEIGHTS)
    assert (b"canary of a weight" in b"".join(seen)) is not encrypted


@pytest.mark.usefixtures("between_machines")
def test_a_peer_without_the_secret_gets_nothing_inside_tls() -> None:
    with RangeServer({"w": (Part(BOX, WEIGHTS),)}, SECRET) as server:
        with pytest.raises(InfrastructureError, match="is gone"):
            read_weights(server.address, b"another")
        assert torch.equal(read_weights(server.address), WEIGHTS)


@pytest.mark.usefixtures("between_machines")
def test_who_speaks_no_tls_is_dropped_and_others_are_served() -> None:
    with RangeServer({"w": (Part(BOX, WEIGHTS),)}, SECRET) as server:
        with socket.create_connection(server.address) as raw:
            raw.settimeout(10)
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            heard = b""
            with suppress(ConnectionResetError):
                while part := raw.recv(4096):
                    heard += part
        assert len(heard) < 64, "an alert at most"
        assert torch.equal(read_weights(server.address), WEIGHTS)


@pytest.mark.usefixtures("between_machines")
def test_a_flipped_bit_on_the_wire_ends_the_connection() -> None:
    turned = []

    def flip(data: bytes) -> bytes:
        if len(data) < 1000 or turned:  # the first long answer holds the weights
            return data
        turned.append(True)
        return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]

    with (
        RangeServer({"w": (Part(BOX, WEIGHTS),)}, SECRET) as server,
        wire(server.address, flip) as (address, _),
        pytest.raises(InfrastructureError, match="is gone"),
    ):
        read_weights(address)
    assert turned


@pytest.mark.usefixtures("between_machines")
def test_who_stands_between_with_a_certificate_of_its_own_is_refused_by_both_sides() -> None:
    """It ends TLS towards either side, and passes on what they say inside: their proofs are of other certificates."""
    encryption._own_certificate.cache_clear()
    served: list[bool] = []
    with RangeServer({"w": (Part(BOX, WEIGHTS),)}, SECRET) as server:
        victim = encryption._own_certificate()
        encryption._own_certificate.cache_clear()
        attacker = encryption._own_certificate()
        assert victim[1] != attacker[1]

        def stand_between() -> None:
            near, far = (
                listener.accept()[0],
                encryption.client_side(socket.create_connection(server.address)).connection,
            )
            inside = attacker[0].wrap_socket(near, server_side=True)
            try:
                inside.sendall(far.recv(32))  # the server's nonce
                far.sendall(inside.recv(64))  # the client's nonce and its proof
                served.append(bool(far.recv(32)))
            except (OSError, ssl.SSLError):
                served.append(False)
            inside.close()
            far.close()

        encryption._own_certificate.cache_clear()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=stand_between, daemon=True)
            thread.start()
            with pytest.raises(InfrastructureError, match="is gone"):
                read_weights(listener.getsockname())
            thread.join(10)
    assert served == [False]


def a_cache_server(folder: Path, secret: bytes, host: str = "127.0.0.1") -> CacheServer:
    server = CacheServer(folder, "node-a", secret, Memory(1 << 20, time.monotonic, lambda: 1 << 30), host)
    RunDir(folder).write(server.address, "node-a")
    return server


def keep_file(server: CacheServer, data: bytes) -> None:
    fd = new_file()
    os.write(fd, data)
    seal(fd)
    server._memory.reserve("job", "job/lineage-0/step-0000000001-epoch-1-a", len(data))
    server._memory.keep("job", KEY, fd, own=True)


@pytest.mark.parametrize("encrypted", [True, False])
def test_another_node_reads_a_checkpoint_from_memory_and_the_wire_shows_nothing(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_addresses, "is_loopback", lambda _: not encrypted)
    secret, data = b"of the installation" * 2, b"canary of a checkpoint" * 100
    server = a_cache_server(tmp_path, secret)
    keep_file(server, data)
    with wire((server.address.host, server.address.port)) as (address, seen):
        record = json.loads((tmp_path / "node-a.json").read_text())
        (tmp_path / "node-a.json").write_text(json.dumps({**record, "port": address[1]}))
        client = CacheClient(Access(tmp_path, ("node-a",), "job", job_key(secret, "job")), "node-a")
        got = bytearray(len(data))
        client.read(KEY, 0, [memoryview(got)])
        stranger = CacheClient(Access(tmp_path, ("node-a",), "job", job_key(b"another", "job")), "node-a")
        with pytest.raises((OSError, EOFError, ValueError)):
            stranger.ask(op="list", uri="job")
        client.close()
    server.close()
    assert bytes(got) == data
    assert (b"canary of a checkpoint" in b"".join(seen)) is not encrypted


def test_an_address_of_another_machine_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"nothing can listen at 192\.0\.2\.1: .*\(ELASTIC_CLUSTER\)"):
        RangeServer({}, SECRET, FOREIGN)
    with pytest.raises(InfrastructureError, match="address of this machine"):
        a_cache_server(tmp_path, SECRET, FOREIGN)


@pytest.mark.parametrize(
    ("address", "words"),
    [("0.0.0.0", "is not the address of one host"), ("::", "is not the address of one host"),
     ("gpu-1", "is no IP address"),
     ("224.0.0.1", "is not the address of one host"), ("10.0.0.5:80", "is no IP address")],
)  # fmt: skip
def test_a_cluster_file_names_addresses_of_single_machines(address: str, words: str) -> None:
    nodes = [{"name": "a", "type": "cpu", "slots": 1, "address": address}]
    with pytest.raises(UserError, match=words):
        parse_cluster_spec({"nodes": nodes})


def test_nodes_have_addresses_of_their_own_or_are_on_loopback_all_of_them() -> None:
    nodes = [{"name": name, "type": "cpu", "slots": 1} for name in ("a", "b", "c")]
    assert parse_cluster_spec({"nodes": nodes}).addresses() == {}
    for place, node in enumerate(nodes, 5):
        node["address"] = f"10.0.0.{place}"
    nodes[2]["network_namespace"] = "c"  # where the services' own processes are not
    assert parse_cluster_spec({"nodes": nodes}).addresses() == {"a": "10.0.0.5", "b": "10.0.0.6"}
    assert node_addresses.is_loopback(LOOPBACK)
    assert not node_addresses.is_loopback("10.0.0.5")
