"""The memory tier in front of the store, with real cache servers: what it gives, and that it never does harm."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.settings import Settings
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors
from elastic_core.state.format.manifest import MANIFEST
from elastic_core.state.memory_tier import cache_client, cache_servers
from elastic_core.state.memory_tier.cache_client import Access, CacheClient
from elastic_core.state.memory_tier.cache_server import job_key
from elastic_core.state.memory_tier.cached_store import MemoryTier, TieredStore, holders
from elastic_core.state.memory_tier.channel import MAC, NONCE
from elastic_core.state.stores.local_store import LocalStore
from tests.launch.builders import order
from tests.state.builders import HEADER, URI, some_tensors, write

NODES = ("a", "b", "c")
SHARD = f"{URI}/shard-0.safetensors"


class Nodes:
    """Keepers of three nodes, and one store."""

    def __init__(self, home: Path, megabytes: int = 1) -> None:
        self.settings = Settings(home=home, project=Path(__file__).parents[3], node_memory_mb=megabytes)
        self.secret = cache_servers._secret(self.settings)
        self.folder = cache_servers.folder_of(self.settings)
        cache_servers.wait(cache_servers.start(self.settings, NODES))
        self.plain = LocalStore(home / "store")
        self.said: list[str] = []

    def access(self, job: str = HEADER.job_id) -> Access:
        return Access(self.folder, NODES, job, job_key(self.secret, job))

    def memory(self, node: str, copies: int = 1) -> MemoryTier:
        return MemoryTier(self.access(), node, copies, self.said.append)

    def store(self, node: str, copies: int = 1) -> tuple[TieredStore, MemoryTier]:
        memory = self.memory(node, copies)
        return TieredStore(self.plain, memory), memory

    def cache_server(self, node: str) -> ProcessId:
        process = cache_servers._process(self.folder, node)
        assert process is not None
        return process

    def kill(self, node: str) -> None:
        server = self.cache_server(node)
        server.send(signal.SIGKILL)
        wait_for(lambda: not server.alive())

    def kept(self, node: str, uri: str = URI) -> dict[str, int]:
        client = CacheClient(self.access(), node)
        try:
            return client.ask(op="list", uri=uri)
        finally:
            client.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    stopped = [found.cache_server(node) for node in NODES if RunDir(found.folder).read_json(f"{node}.json")]
    for server in stopped:
        server.send(signal.SIGCONT)
    cache_servers.stop(found.settings)
    assert not any(server.alive() for server in stopped)


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def break_store(nodes: Nodes) -> None:
    for path in (Path(nodes.plain.url) / URI).iterdir():
        path.write_bytes(b"\0" * path.stat().st_size)


def assert_reads(store: TieredStore, sha256: str) -> None:
    want = some_tensors()
    found = read_tensors(store, read_manifest(store, URI, sha256))
    assert {name: torch.equal(found[name], want[name]) for name in want} == dict.fromkeys(want, True)


def test_a_node_reads_what_it_wrote_without_the_store(nodes: Nodes) -> None:
    written = write(nodes.store("a")[0], some_tensors(), world=2)
    break_store(nodes)
    store, memory = nodes.store("a")
    assert_reads(store, written.sha256)
    taken = memory.taken()
    assert taken == {"own_node": taken["own_node"], "other_nodes": 0, "store": 0}
    assert taken["own_node"] >= written.size_bytes - 100
    assert memory.taken()["own_node"] == 0
    assert nodes.said == []


def test_a_node_hands_out_the_file_of_what_it_wrote_another_node_none(nodes: Nodes) -> None:
    write(nodes.store("a")[0], some_tensors())
    wait_for(lambda: SHARD in nodes.kept("a"))
    store, memory = nodes.store("a")
    opened = store.host_file(SHARD)
    assert opened is not None
    assert os.pread(opened.fd, opened.size, 0) == nodes.plain.get(SHARD)
    opened.taken(10)
    opened.close()
    assert memory.taken() == {"own_node": 10, "other_nodes": 0, "store": 0}
    assert store.distrust(SHARD, "damaged")  # from now on from the store
    stored = store.host_file(SHARD)
    assert stored is not None
    stored.taken(7)
    stored.close()
    assert memory.taken() == {"own_node": 0, "other_nodes": 0, "store": 7}
    assert nodes.store("b")[0].host_file(SHARD) is None  # it reads a's memory


def test_another_node_reads_over_the_network_and_writes_into_any_memory(nodes: Nodes) -> None:
    written = write(nodes.store("a")[0], some_tensors(), world=2)
    break_store(nodes)
    store, memory = nodes.store("c")
    assert_reads(store, written.sha256)
    taken = memory.taken()
    assert taken["other_nodes"] > 0
    assert (taken["own_node"], taken["store"]) == (0, 0)


def test_after_a_commit_the_next_node_has_a_copy_that_survives_its_writer(nodes: Nodes) -> None:
    store, memory = nodes.store("a")
    written = write(store, some_tensors(), world=2)
    memory.committed(URI, ["a"])
    wait_for(lambda: len(nodes.kept("b")) == 3)
    assert nodes.kept("c") == {}
    nodes.kill("a")
    break_store(nodes)
    for reader in ("b", "a"):  # also one on the node that was lost, which has come back with nothing
        again, other = nodes.store(reader)
        assert_reads(again, written.sha256)
        assert other.taken()["store"] == 0


def test_a_node_that_comes_while_a_job_runs_gets_its_copies(nodes: Nodes) -> None:
    now = [replace(nodes.access(), nodes=("a",))]
    memory = MemoryTier(now[0], "a", 1, nodes.said.append, lambda: now[-1])
    write(TieredStore(nodes.plain, memory), some_tensors(), world=2)
    memory.committed(URI, ["a"])
    memory.close()
    assert nodes.kept("b") == {}
    now.append(nodes.access())
    memory.committed(URI, ["a"])
    wait_for(lambda: nodes.kept("b") == nodes.kept("a"))
    assert nodes.said == []


def test_copies_go_to_the_jobs_next_nodes_and_then_to_others() -> None:
    assert holders(["a", "b", "a"], NODES, 1) == {"a": ("b",), "b": ("a",)}
    assert holders(["a"], NODES, 2) == {"a": ("b", "c")}
    assert holders(NODES, NODES, 1) == {"a": ("b",), "b": ("c",), "c": ("a",)}
    assert holders(["b"], ["b"], 3) == {"b": ()}
    assert holders(["a", "b"], NODES, 0) == {"a": (), "b": ()}


def test_a_newer_commit_drops_the_older_copies_and_the_end_of_the_job_everything(nodes: Nodes) -> None:
    store, memory = nodes.store("a", copies=2)
    write(store, some_tensors(), world=1)
    memory.committed(URI, ["a"])
    wait_for(lambda: nodes.kept("b") and nodes.kept("c"))
    later = URI.replace("step-0000000012", "step-0000000013")
    write(store, some_tensors(), world=1, uri=later)
    memory.committed(later, ["a"])
    wait_for(lambda: len(nodes.kept("b", later)) == len(nodes.kept("c", later)) == 2)
    assert [nodes.kept(node) for node in NODES] == [{}, {}, {}]
    memory.finished()
    memory.close()
    assert [nodes.kept(node, later) for node in NODES] == [{}, {}, {}]


def test_jobs_that_are_active_no_more_lose_what_was_kept(nodes: Nodes) -> None:
    write(nodes.store("a")[0], some_tensors())
    cache_servers.retain_jobs(nodes.settings, [HEADER.job_id])
    assert nodes.kept("a")
    cache_servers.retain_jobs(nodes.settings, ["another"])
    assert nodes.kept("a") == {}


def test_a_cache_server_whose_address_a_power_cut_has_emptied_is_started_again(nodes: Nodes) -> None:
    nodes.kill("a")
    (nodes.folder / "a.json").write_bytes(b"")
    cache_servers.retain_jobs(nodes.settings, [HEADER.job_id])
    assert nodes.cache_server("a").alive()


def test_an_address_that_cannot_be_read_keeps_no_job_from_the_store(nodes: Nodes) -> None:
    address, run_dir = nodes.folder / "a.json", RunDir.of(nodes.settings.home, 7)
    run_dir.create()
    known = address.read_text()
    address.write_text("{")
    cache_servers.retain_jobs(nodes.settings, [HEADER.job_id])
    assert cache_servers.prepare_on(nodes.settings, order(), run_dir, NODES, None) == []
    assert run_dir.read(Access) is None
    address.write_text(known)


def test_damaged_memory_is_told_and_read_from_the_store(nodes: Nodes) -> None:
    written = write(nodes.store("a")[0], some_tensors(), world=2)
    for key in (SHARD, f"{URI}/{MANIFEST}"):
        data = bytearray(nodes.plain.get(key))
        data[len(data) // 2] ^= 1
        writing = nodes.memory("a").writing(key)
        assert writing is not None
        writing.add(bytes(data))
        writing.done()
    store, memory = nodes.store("a")
    assert_reads(store, written.sha256)
    taken = memory.taken()
    assert taken["own_node"] > 0
    assert taken["store"] > 0
    assert len([text for text in nodes.said if "is damaged in memory" in text]) == 2
    break_store(nodes)
    with pytest.raises(CorruptCheckpoint):
        assert_reads(nodes.store("a")[0], written.sha256)


def test_a_cache_server_that_is_gone_or_hangs_is_told_and_training_goes_on(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_client, "PATIENCE_SECONDS", 0.3)
    written = write(nodes.store("a")[0], some_tensors(), world=2)
    nodes.kill("b")
    nodes.cache_server("a").send(signal.SIGSTOP)
    store, memory = nodes.store("a")
    started = time.monotonic()
    assert_reads(store, written.sha256)
    assert time.monotonic() - started < 3
    taken = memory.taken()
    assert (taken["own_node"], taken["other_nodes"]) == (0, 0)
    assert {text.split(" does not answer")[0] for text in nodes.said} == {f"the cache server of node {n}" for n in "ab"}
    later = URI.replace("step-0000000012", "step-0000000013")
    assert read_manifest(nodes.plain, later, write(store, some_tensors(), uri=later).sha256)
    memory.committed(later, ["a"])  # waits for nobody
    assert any(text.startswith("not kept in memory") for text in nodes.said)
    nodes.cache_server("a").send(signal.SIGCONT)
    assert memory.writing(SHARD) is None  # one that has hung is left alone for a while
    again = nodes.memory("a").writing(SHARD)
    assert again is not None
    again.close()


def test_a_node_that_dies_while_it_is_read_from_is_replaced_by_the_store(nodes: Nodes) -> None:
    written = write(nodes.store("a")[0], some_tensors(), world=2)
    store, memory = nodes.store("c")
    manifest = read_manifest(store, URI, written.sha256)  # now it knows where everything lies
    nodes.kill("a")
    found = read_tensors(store, manifest)
    assert torch.equal(found["model.weight"], some_tensors()["model.weight"])
    assert memory.taken()["store"] > 0
    assert any(text.startswith("the cache of node a cannot be read") for text in nodes.said)


def test_what_does_not_fit_the_bound_is_told_and_lies_in_the_store_alone(nodes: Nodes) -> None:
    store, memory = nodes.store("a")
    large = {"w": torch.zeros(300_000)}  # 1.2 MB, the bound is 1 MiB
    written = write(store, large)
    assert SHARD not in nodes.kept("a")
    assert any("has no room for" in text and "ELASTIC_NODE_MEMORY_MB" in text for text in nodes.said)
    assert torch.equal(read_tensors(store, read_manifest(store, URI, written.sha256))["w"], large["w"])
    assert memory.taken()["store"] > 1_200_000
    write(store, {"w": torch.zeros(250_000)}, uri=URI + "1")  # what was reserved for the other was given back
    assert len(nodes.kept("a", URI + "1")) == 2


def test_a_file_that_is_not_whole_is_never_kept(nodes: Nodes) -> None:
    def breaks() -> Iterator[memoryview]:
        yield memoryview(b"first half")
        raise InfrastructureError("the disk is full")

    store, _ = nodes.store("a")
    with pytest.raises(InfrastructureError, match="the disk is full"):
        store.put(SHARD, breaks())
    assert nodes.kept("a") == {}
    write(store, {"w": torch.zeros(250_000)})
    assert SHARD in nodes.kept("a")


def test_a_key_of_another_job_opens_nothing(nodes: Nodes) -> None:
    write(nodes.store("a")[0], some_tensors())
    forged = Access(nodes.folder, NODES, HEADER.job_id, job_key(nodes.secret, "another"))
    for near in (True, False):
        with pytest.raises((EOFError, OSError)):
            CacheClient(forged, "a", near=near).ask(op="list", uri=URI)
    foreign = CacheClient(nodes.access("another"), "a", near=True)
    assert foreign.ask(op="list", uri=URI) == {}
    with pytest.raises(InfrastructureError, match="does not keep"):
        foreign.read(SHARD, 0, [memoryview(bytearray(4))])
    with pytest.raises(EOFError):
        foreign.ask(op="only", jobs=[])
    foreign.close()
    assert nodes.kept("a")
    address = RunDir(nodes.folder).read_json("a.json")
    with socket.create_connection((address["host"], address["port"])) as raw:
        raw.settimeout(5)
        raw.sendall((5).to_bytes(2, "little") + b"job-1")
        assert len(raw.recv(NONCE, socket.MSG_WAITALL)) == NONCE
        raw.sendall(bytes(NONCE + MAC))
        assert raw.recv(1) == b""


def test_files_are_handed_over_on_the_node_only(nodes: Nodes) -> None:
    write(nodes.store("a")[0], some_tensors())
    with pytest.raises(EOFError), CacheClient(nodes.access(), "a").borrow() as far:
        far.open(SHARD)


def test_other_objects_and_other_jobs_checkpoints_pass_by(nodes: Nodes) -> None:
    store, memory = nodes.store("a")
    other = URI.replace(HEADER.job_id, "another")
    for key in (f"{HEADER.job_id}/audit/indices.npy", f"{other}/{MANIFEST}"):
        store.put(key, b"bytes")
        assert store.get(key) == b"bytes"
        assert store.size(key) == 5
    assert memory.taken() == {"own_node": 0, "other_nodes": 0, "store": 10}
    assert nodes.kept("a", other) == {}


def test_a_cache_server_leaves_nothing_behind_however_it_ends(nodes: Nodes) -> None:
    write(nodes.store("a")[0], some_tensors())
    server = Path(f"/proc/{nodes.cache_server('a').pid}")
    held = [os.readlink(fd) for fd in (server / "fd").iterdir()]
    assert any("memfd:" in path for path in held)
    assert not any(path.startswith("/dev/shm/") for path in held)  # a name would outlive it
    assert "/dev/shm/" not in (server / "maps").read_text()
    nodes.kill("a")
    cache_servers.wait(cache_servers.start(nodes.settings, NODES))
    assert nodes.kept("a") == {}
    server = nodes.cache_server("a")
    cache_servers.stop(nodes.settings)
    assert not server.alive()
    assert sorted(path.suffix for path in nodes.folder.iterdir()) == [".lock"] * 3 + [".log"] * 3


def test_a_cache_server_whose_installation_is_gone_ends_by_itself(nodes: Nodes) -> None:
    server = nodes.cache_server("a")
    nodes.settings.secret_file("memory").unlink()
    wait_for(lambda: not server.alive())


def test_a_node_has_one_cache_server_however_many_start_it(nodes: Nodes) -> None:
    first = nodes.cache_server("a")
    cache_servers.wait(cache_servers._spawn(nodes.settings, nodes.folder, "a", LOOPBACK) for _ in range(2))
    assert nodes.cache_server("a") == first
    assert first.alive()
