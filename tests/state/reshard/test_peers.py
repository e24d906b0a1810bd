"""Memory over the network: exact ranges, for those who know the secret; whatever goes wrong is said."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elastic_core.errors import InfrastructureError
from elastic_core.state.layout.boxes import Box
from elastic_core.state.memory_tier import channel, handshakes
from elastic_core.state.reshard.memories import Memory, Part
from elastic_core.state.reshard.peers import PeerSource, RangeServer
from tests.control.scheduling.open_files import no_more_files

SECRET = b"of this change"
WHOLE = torch.arange(600, dtype=torch.float32).reshape(20, 30)


def memory() -> Memory:
    return {"w": (Part(Box((10, 0), (20, 30)), WHOLE),), "s": (Part(Box((), ()), torch.tensor(7, dtype=torch.int64)),)}


def test_a_range_comes_as_it_is_into_memory_of_any_strides() -> None:
    with RangeServer(memory(), SECRET) as server:
        peer = PeerSource(server.address, SECRET)
        for box in (Box((10, 0), (20, 30)), Box((12, 5), (3, 7)), Box((29, 29), (1, 1))):
            want = WHOLE[box.slices((10, 0))]
            out, transposed = torch.empty(box.shape), torch.empty(box.shape[::-1]).T
            for place in (out, transposed):
                peer.read("w", box, place)
                assert torch.equal(place, want)
        scalar = torch.zeros((), dtype=torch.int64)
        peer.read("s", Box((), ()), scalar)
        assert scalar == 7
        peer.close()


def test_for_want_of_files_it_turns_nobody_away_for_ever() -> None:
    with RangeServer(memory(), SECRET) as server:
        strangers = [socket.socket() for _ in range(3)]
        with no_more_files():
            for stranger in strangers:
                stranger.connect(server.address)
            time.sleep(0.3)
        for stranger in strangers:
            stranger.close()
        peer, out = PeerSource(server.address, SECRET), torch.empty(1, 30)
        peer.read("w", Box((10, 0), (1, 30)), out)
        assert torch.equal(out[0], WHOLE[0])
        peer.close()


def test_many_threads_read_at_once() -> None:
    with RangeServer(memory(), SECRET) as server:
        peer = PeerSource(server.address, SECRET)

        def row(i: int) -> bool:
            out = torch.empty(1, 30)
            peer.read("w", Box((10 + i % 20, 0), (1, 30)), out)
            return torch.equal(out[0], WHOLE[i % 20])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(row, range(200)))
        peer.close()


def test_who_does_not_know_the_secret_gets_nothing() -> None:
    with RangeServer(memory(), SECRET) as server:
        with pytest.raises(InfrastructureError, match="is gone"):
            PeerSource(server.address, b"another").read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
        with socket.create_connection(server.address) as raw:
            raw.settimeout(5)
            nonce = raw.recv(channel.NONCE, socket.MSG_WAITALL)
            assert len(nonce) == channel.NONCE
            raw.sendall(bytes(channel.NONCE + channel.MAC))
            assert raw.recv(1) == b""


def test_who_connects_and_says_nothing_is_ended_and_of_more_than_so_many_the_last_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "MOST_HANDSHAKES", 2)
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.5)
    with RangeServer(memory(), SECRET) as server:
        silent = [socket.create_connection(server.address) for _ in range(2)]
        assert [len(one.recv(channel.NONCE, socket.MSG_WAITALL)) for one in silent] == [channel.NONCE] * 2
        peer = PeerSource(server.address, SECRET)
        with pytest.raises(InfrastructureError, match="is gone"):
            peer.read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
        for one in silent:
            one.settimeout(5)
            assert one.recv(1) == b""
            one.close()
        out = torch.empty(1, 30)
        peer.read("w", Box((10, 0), (1, 30)), out)
        assert torch.equal(out[0], WHOLE[0])
        peer.close()


def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor(1) as pool:

        def pretend() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(bytes(channel.NONCE))
                connection.recv(channel.NONCE + channel.MAC, socket.MSG_WAITALL)
                connection.sendall(bytes(channel.MAC))
                connection.recv(1)

        done = pool.submit(pretend)
        with pytest.raises(InfrastructureError, match="does not know the secret"):
            PeerSource(impostor.getsockname(), SECRET).read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
        done.result(5)


def test_bytes_damaged_on_the_way_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = channel._receive_into

    def damaged(connection: socket.socket, out: memoryview, deadline: float | None = None) -> None:
        real(connection, out, deadline)
        if out.nbytes == 600 * 4:
            out[100] ^= 1

    monkeypatch.setattr(channel, "_receive_into", damaged)
    with RangeServer(memory(), SECRET) as server, pytest.raises(InfrastructureError, match="came with CRC-32C"):
        PeerSource(server.address, SECRET).read("w", Box((10, 0), (20, 30)), torch.empty(20, 30))


def test_a_message_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with RangeServer(memory(), SECRET) as server:
        peer = PeerSource(server.address, SECRET)
        peer.read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
        (channel,) = [peer._idle.get_nowait()]
        channel._count -= 1  # as one who sends again what he overheard
        peer._idle.put(channel)
        with pytest.raises(InfrastructureError, match="is gone"):
            peer.read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))


def test_what_is_not_held_and_a_server_that_is_gone_are_named() -> None:
    server = RangeServer(memory(), SECRET)
    peer = PeerSource(server.address, SECRET)
    with pytest.raises(InfrastructureError, match=r"does not hold \[0:1, 0:1\] of w"):
        peer.read("w", Box((0, 0), (1, 1)), torch.empty(1, 1))
    peer.read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
    server.close()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="is gone"):
            peer.read("w", Box((10, 0), (1, 1)), torch.empty(1, 1))
