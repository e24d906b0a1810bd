"""A server that is asked by whoever can reach it turns peers away, and goes on."""

from __future__ import annotations

import socket
import threading

import pytest

from elastic_core.state.memory_tier.handshakes import MOST_HANDSHAKES, Handshakes


def is_closed(peer: socket.socket) -> bool:
    peer.settimeout(5.0)
    return peer.recv(1) == b""


def test_where_the_system_has_no_thread_the_peer_is_turned_away_and_its_turn_is_free_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handshakes = Handshakes()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for _ in range(2 * MOST_HANDSHAKES):
            ours, peer = socket.socketpair()
            handshakes.begin(ours, lambda _: pytest.fail("nobody can be served"))
            assert is_closed(peer)
            peer.close()
    ours, peer = socket.socketpair()
    served = threading.Event()
    handshakes.begin(ours, lambda _: served.set())
    assert served.wait(5.0)
    ours.close()
    peer.close()
