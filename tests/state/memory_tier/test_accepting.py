"""A server for long takes connections until it is closed, and gives each peer its share of them."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

from elastic_core.state.memory_tier.accepting import Shares, accept_all
from tests.control.scheduling.open_files import no_more_files


@pytest.mark.parametrize("end", ["closed", "shut down"])
def test_connections_that_wait_while_there_are_no_files_are_taken_later_and_the_end_is_the_listeners(end: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []
    serving = threading.Thread(target=accept_all, args=(listener, taken.append))
    serving.start()
    peers = [socket.socket() for _ in range(3)]
    with no_more_files():
        for peer in peers:
            peer.connect(listener.getsockname())
        time.sleep(0.3)
        assert len(taken) < 3
    deadline = time.monotonic() + 10
    while len(taken) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    listener.shutdown(socket.SHUT_RDWR)
    if end == "closed":
        listener.close()
    serving.join(10)
    assert not serving.is_alive()
    for connection in (*peers, *taken, listener):
        connection.close()


def test_each_peer_has_so_many_at_once_whatever_others_have() -> None:
    shares = Shares(2)
    with shares.taken("a") as first, shares.taken("a") as second, shares.taken("b") as other:
        assert (first, second, other) == (True, True, True)
        with shares.taken("a") as third:
            assert not third
        with shares.taken("a") as fourth:
            assert not fourth, "who was turned away has given nothing back"
    with shares.taken("a") as again:
        assert again


def test_a_server_has_all_the_files_that_the_system_lets_it() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = (
        "import resource; from elastic_core.state.memory_tier.accepting import raise_file_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {most})); raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert int(told.stdout) == most
