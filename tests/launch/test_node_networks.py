"""Workers of nodes that are network namespaces: where they run, and their way to the control API."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from elastic_core.errors import UserError
from elastic_core.host.network import namespaces
from elastic_core.host.network.interfaces import interface_of
from elastic_core.host.network.unix_sockets import name_for_life
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.host.this_machine import require_networks
from elastic_core.host.workers import CONTROL_SOCKET
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.workers import control_relay
from elastic_core.spec import parse_cluster_spec
from tests.launch.builders import (
    agent_of,
    order,
    scripted,
    wait_for,
    wait_until_dead,
    wait_until_ready,
)
from tests.node_networks import NodeNamespaces, skip_without_namespaces
from tests.processes import children
from tests.train import forked

NOBODY = 65534


@pytest.fixture(scope="module")
def nodes() -> Iterator[NodeNamespaces]:
    skip_without_namespaces()
    with NodeNamespaces(1) as nodes:
        yield nodes


@contextmanager
def api() -> Iterator[str]:
    """An HTTP server on loopback; its address. It answers with what it was sent."""

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def launcher_over(nodes: NodeNamespaces, home: Path, behaviour: str, url: str) -> LocalLauncher:
    cluster = home / "cluster.json"
    described = nodes.cluster(slots=2)
    described["nodes"][0]["name"] = "n0"  # as the orders of these tests call it
    cluster.write_text(json.dumps(described))
    launcher = scripted(home, behaviour, url)
    launcher.settings = launcher.settings.model_copy(update={"cluster": cluster})
    return launcher


def network_of(process: ProcessId) -> int:
    return os.stat(f"/proc/{process.pid}/ns/net").st_ino


def asks(namespace: str, url: str, relay: str) -> int:
    """From within: loopback leads nowhere, the relay to the API, twice over one connection."""
    namespaces.enter(namespace)
    sent = b"x" * 300_000
    with httpx.Client(timeout=10) as direct, pytest.raises(httpx.ConnectError):
        direct.post(url, content=sent)
    with httpx.Client(timeout=10, transport=httpx.HTTPTransport(uds=name_for_life(Path(relay)))) as client:
        assert [client.post(url, content=sent).content for _ in range(2)] == [sent, sent]
    return 0


def test_workers_enter_their_nodes_namespace_and_reach_the_api_through_a_relay_that_comes_back(
    nodes: NodeNamespaces, home: Path
) -> None:
    with api() as url:
        launcher = launcher_over(nodes, home, "sleep", url)
        launcher.start(order(num_slots=2))
        workers, agent = wait_until_ready(launcher), agent_of(launcher)
        inside = (namespaces.FOLDER / nodes.names[0]).stat().st_ino
        assert [network_of(worker) for worker in workers] == [inside, inside]
        assert network_of(agent) == network_of(ProcessId.current()) != inside
        commands = [Path(f"/proc/{worker.pid}/cmdline").read_bytes() for worker in workers]
        if b"-S" in commands[0]:  # what was forked shows the command of the fork server
            assert all(nodes.addresses[0].encode() in command for command in commands)
        folder = RunDir.of(home, 7).path
        relay = folder / CONTROL_SOCKET
        assert relay.stat().st_mode & 0o777 == 0o600
        asked = nodes.names[0], url, str(relay)
        assert forked.join([forked.start(asks, *asked, log=folder / "asks")]) == [0], (folder / "asks").read_text()
        (first,) = set(children(agent.pid)) - {worker.pid for worker in workers}
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: set(children(agent.pid)) - {first, *(worker.pid for worker in workers)})
        assert forked.join([forked.start(asks, *asked, log=folder / "asks")]) == [0], (folder / "asks").read_text()
        launcher.stop(7, grace_seconds=5)
        wait_until_dead(launcher)
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as late:
            late.connect(name_for_life(relay))


def test_a_namespace_that_is_gone_is_said_in_the_report(nodes: NodeNamespaces, home: Path) -> None:
    launcher = launcher_over(nodes, home, "sleep", "http://127.0.0.1:9")
    path = home / "cluster.json"
    path.write_text(path.read_text().replace(nodes.names[0], "not-there"))
    launcher.start(order(num_slots=1))
    status = wait_until_dead(launcher)
    assert status.exit is not None
    assert "exit code 127" in status.exit.error
    assert "not-there" in status.exit.log_tail


def test_nodes_that_are_not_where_the_cluster_file_says_are_refused_by_name(nodes: NodeNamespaces) -> None:
    described = nodes.cluster(slots=1)
    require_networks(parse_cluster_spec(described))
    elsewhere = {"type": "cpu", "slots": 1, "address": "10.99.0.1"}
    described["nodes"] += [
        {**elsewhere, "name": "gone", "network_namespace": "not-there"},
        {**elsewhere, "name": "bare", "address": "10.99.0.2"},
    ]
    with pytest.raises(UserError) as caught:
        require_networks(parse_cluster_spec(described))
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 2
    assert "node 'gone': there is no network namespace 'not-there'" in lines[0]
    assert "ip netns add not-there" in lines[0]
    assert "node 'bare': this machine has no interface with the address 10.99.0.2" in lines[1]


def without_rights(namespace: str, address: str) -> int:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    print(namespaces.why_unusable(address, namespace))
    return 0


def test_who_may_enter_no_namespace_is_told_that_it_takes_root(nodes: NodeNamespaces, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert forked.join([forked.start(without_rights, nodes.names[0], nodes.addresses[0], log=log)]) == [0]
    assert "only root (CAP_SYS_ADMIN)" in log.read_text()


def finds_its_interface(namespace: str, address: str) -> int:
    namespaces.enter(namespace)
    print(interface_of(address), interface_of("127.0.0.1"))
    return 0


def test_the_interface_of_an_address_is_found_where_it_is(nodes: NodeNamespaces, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert forked.join([forked.start(finds_its_interface, nodes.names[0], nodes.addresses[0], log=log)]) == [0]
    assert log.read_text() == "eth0 lo\n"


def relays_as_another_user(folder: str, url: str) -> int:
    path = Path(folder) / CONTROL_SOCKET
    pid = control_relay.start(path, url, (NOBODY, NOBODY))
    try:
        with httpx.Client(timeout=10, transport=httpx.HTTPTransport(uds=name_for_life(path))) as client:
            assert client.post(url, content=b"asked").content == b"asked"
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        assert next(line.split()[1:] for line in lines if line.startswith("Uid:")) == [str(NOBODY)] * 4
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (NOBODY, 0o600)
    finally:
        os.kill(pid, signal.SIGKILL)
    return 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_where_workers_are_another_user_the_relay_is_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with api() as url:
        relays = forked.start(relays_as_another_user, str(tmp_path), url, log=log)
        assert forked.join([relays]) == [0], log.read_text()
