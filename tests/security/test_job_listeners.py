"""A job of two ranks, real from end to end: what its processes listen on, and that strangers change nothing of it."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from elastic_core.host.messages import CacheServerAddress, Rendezvous
from elastic_core.host.process import marked
from elastic_core.host.rundir import RUN_DIR, RunDir
from elastic_core.spec import parse_cluster_spec
from elastic_core.state.memory_tier import cache_servers
from elastic_core.state.memory_tier.channel import NONCE
from tests.launch.airflowless import Platform, platform
from tests.node_networks import NodeNamespaces, skip_without_namespaces
from tests.processes import children
from tests.security.listeners import knock_as_nobody, listeners

pytestmark = pytest.mark.e2e


def processes_of(running: Platform, job_id: str) -> list[int]:
    """The agent and its children, the workers, whatever they have started, and the cache servers."""
    order = running.control.launch_order(running.running(job_id).segment_id)
    run_dir = RunDir.of(running.home, order.origin_epoch)
    pids = {
        running.agent_pid(job_id),
        *running.worker_pids(job_id),
        *children(running.agent_pid(job_id)),
        *(process.pid for process in marked(RUN_DIR, str(run_dir.path))),
    }
    servers = RunDir(cache_servers.folder_of(running.settings)).read_each(CacheServerAddress)
    return sorted(pids | {server.pid for server in servers})


def test_every_listener_of_a_two_rank_job_is_of_this_host_and_refuses_strangers(
    tmp_path: Path, home: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # as the services may have it
    with platform(home, ledger_url, node_memory_mb=64, host="0.0.0.0") as running:
        running.submit("job", slots=(2, 2), samples=80_000, checkpoints={"interval_steps": 10})
        running.until_step("job", 20)
        pids = processes_of(running, "job")
        found = listeners(pids)
        workers = running.worker_pids("job")
        answers = knock_as_nobody(found, tmp_path)
        running.until_step("job", max(running.curve("job")) + 20)
        (segment,) = running.control.segments("job")
        running.control.cancel("job", "seen enough")
        running.until(running.launcher.groups, lambda groups: not any(group.alive for group in groups))
        cache_servers.stop(running.settings)
    assert segment.attempt == 0
    assert len(workers) == 2
    assert set(workers) < set(pids)
    assert [listener for listener in found if not listener.of_this_host_alone] == []
    assert {listener.kind for listener in found} == {"tcp", "unix"}
    gloo = [listener for listener in found if listener.pid in workers and listener.kind == "tcp"]
    assert {listener.pid for listener in gloo} == set(workers)
    assert {answers[listener] for listener in gloo} == {None}
    store = [listener for listener in found if listener.pid in workers and listener.kind == "unix"]
    assert [os.path.basename(listener.host).split("-")[0] for listener in store] == ["rendezvous"]
    assert os.getuid() != 0 or answers[store[0]] is None
    heard = [answer for answer in answers.values() if answer is not None]
    assert {len(answer) for answer in heard} <= {0, NONCE}  # the cache server's: a nonce, and then no more


KINDS = [
    (kind, family) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)
]


@pytest.mark.parametrize(("kind", "family"), KINDS)
@pytest.mark.parametrize("says", [b"come in", b""])
def test_a_stranger_hears_what_any_kind_of_listener_says(
    tmp_path: Path, kind: socket.SocketKind, family: socket.AddressFamily, says: bytes
) -> None:
    """Else those that no stranger could knock at would count as refusing."""
    with socket.socket(family, kind) as server:
        server.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            server.listen()
        threading.Thread(target=answer, args=(server, says), daemon=True).start()
        (found,) = [at for at in listeners([os.getpid()]) if at.port == server.getsockname()[1]]
        assert knock_as_nobody([found], tmp_path) == {found: says}


def answer(server: socket.socket, says: bytes) -> None:
    if server.type == socket.SOCK_STREAM:
        connection, _ = server.accept()
        with connection:
            connection.sendall(says)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            with suppress(OSError):
                while connection.recv(4096):
                    pass
        return
    _, stranger = server.recvfrom(4096)
    if says:
        server.sendto(says, stranger)


def test_the_token_of_a_group_is_readable_by_its_user_alone(home: Path, ledger_url: str) -> None:
    with platform(home, ledger_url) as running:
        running.submit("job", slots=(2, 2), samples=80_000)
        running.until_step("job", 5)
        order = running.control.launch_order(running.running("job").segment_id)
        path = RunDir.of(home, order.origin_epoch).path
        modes = {name: (path / name).stat().st_mode & 0o777 for name in (Rendezvous.FILE, "")}
        first = RunDir(path).require(Rendezvous)
        running.control.cancel("job", "seen enough")
        running.until(running.launcher.groups, lambda groups: not any(group.alive for group in groups))
        running.launcher.forget(order.origin_epoch)
        assert modes == {Rendezvous.FILE: 0o600, "": 0o700}
        assert len(first.token) == 32
        assert not list(path.glob("rendezvous*"))


def test_every_listener_of_a_job_on_two_nodes_is_loopback_or_its_nodes_own_and_refuses_strangers(
    tmp_path: Path, home: Path, ledger_url: str
) -> None:
    skip_without_namespaces()
    with NodeNamespaces(3) as nodes:
        cluster = {"nodes": nodes.cluster(slots=1)["nodes"][:2]}
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps(cluster))
        with platform(home, ledger_url, node_memory_mb=64, host="0.0.0.0", cluster=path) as running:
            running.control.set_cluster(parse_cluster_spec(cluster))
            running.submit("job", slots=(2, 2), samples=80_000, checkpoints={"interval_steps": 10})
            running.until_step("job", 20)
            found, workers = listeners(processes_of(running, "job")), running.worker_pids("job")
            met = RunDir.of(home, running.control.launch_order(running.running("job").segment_id).origin_epoch).require(
                Rendezvous
            )
            of_workers = [listener for listener in found if listener.pid in workers and listener.kind == "tcp"]
            answers = knock_as_nobody(of_workers, tmp_path, nodes.names[2])
            running.until_step("job", max(running.curve("job")) + 20)
            (segment,) = running.control.segments("job")
            running.control.cancel("job", "seen enough")
            running.until(running.launcher.groups, lambda groups: not any(group.alive for group in groups))
            cache_servers.stop(running.settings)
    assert segment.attempt == 0
    own = dict(zip(workers, nodes.addresses[:2], strict=True))
    assert [at for at in found if not at.of_this_host_alone and at.host != own.get(at.pid)] == []
    assert {(listener.pid, listener.host) for listener in of_workers} == set(own.items())
    store = [listener for listener in of_workers if (listener.host, listener.port) == (met.host, met.port)]
    assert [listener.pid for listener in store] == workers[:1]
    assert len(answers.pop(store[0]) or b"") == NONCE
    assert set(answers.values()) == {None}
