"""The runtime with its in-memory checkpoint tier: real ledger, agents, cache servers, training; on one machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.domain import JobState, Slot
from elastic_core.host.process import ProcessId
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec
from elastic_core.state.memory_tier import cache_servers
from elastic_core.state.memory_tier.cache_client import Access, CacheClient
from elastic_core.state.memory_tier.cache_server import job_key
from tests.launch.airflowless import ApiThread, Platform, platform
from tests.launch.builders import order

pytestmark = pytest.mark.e2e

SOURCES = ("own_memory", "same_host", "other_hosts", "own_node", "other_nodes", "store")


@contextmanager
def nodes(home: Path, ledger_url: str, **slots: int) -> Iterator[Platform]:
    with platform(home, ledger_url, num_slots=1, node_memory_mb=64) as running:
        pool(running, **slots)
        try:
            yield running
        finally:
            cache_servers.stop(running.settings)


def pool(running: Platform, **slots: int) -> None:
    named = [{"name": name, "type": "cpu", "slots": count} for name, count in slots.items()]
    running.control.set_cluster(ClusterSpec.model_validate({"nodes": named}))


def cache_server_of(running: Platform, node: str) -> ProcessId:
    process = cache_servers._process(cache_servers.folder_of(running.settings), node)
    assert process is not None
    return process


def cached(running: Platform, node: str, job: str, uri: str) -> set[str]:
    key = job_key(cache_servers._secret(running.settings), job)
    client = CacheClient(Access(cache_servers.folder_of(running.settings), (), job, key), node)
    try:
        return {name.rpartition("/")[2] for name in client.ask(op="list", uri=uri)}
    finally:
        client.close()


def restored(running: Platform, job: str) -> list[dict[str, float]]:
    """Bytes by source of each time that the job's processes restored it, as the ledger's events say."""
    assert isinstance(running.api, ApiThread)
    events = [event for event in running.api.events() if event.job_id == job and event.kind == "committed"]
    timings: list[Mapping[str, float]] = [event.payload["timings"] for event in events]
    names = {source: f"restored_from_{source}_bytes" for source in SOURCES}
    return [{source: of.get(name, 0.0) for source, name in names.items()} for of in timings if names["store"] in of]


def break_store(running: Platform, uri: str) -> None:
    """Whoever reads the checkpoint from the store now finds it corrupt, and falls back to an older one."""
    for path in (Path(running.settings.store_url()) / uri).iterdir():
        path.write_bytes(b"\0" * path.stat().st_size)


def test_a_job_survives_a_lost_node_without_the_store_and_to_the_bit(home: Path, ledger_url: str) -> None:
    with nodes(home, ledger_url, n0=1, n1=1) as running:
        slow = {"sleep": 0.1}  # the next checkpoint is a second away
        running.submit("job", slots=(2, 2), samples=256, params=slow, checkpoints={"interval_steps": 12})
        running.until_step("job", 14, seconds=120)
        (checkpoint,) = running.until(lambda: running.control.checkpoints("job"), bool)
        whole = {"manifest.json", "shard-0.safetensors", "shard-1.safetensors"}
        running.until(lambda: cached(running, "n0", "job", checkpoint.uri), lambda names: names == whole)
        break_store(running, checkpoint.uri)
        before = running.curve("job")
        cache_server_of(running, "n1").send(signal.SIGKILL)
        os.kill(running.agent_pid("job"), signal.SIGKILL)  # its workers die with it, on both "nodes"
        running.until(running.launcher.groups, lambda groups: not groups[0].alive)
        pool(running, n0=2)
        running.reconcile()
        assert running.wait("job", seconds=150).state is JobState.FINISHED
        after = running.curve("job")
        assert sorted(after) == list(range(1, 33))
        assert {step: after[step] for step in before} == before  # 13 and 14 at least were taken twice
        assert running.curve("job", rank=1) == after
        (sources,) = restored(running, "job")
        manifests = 0.1 * checkpoint.size_bytes  # one for each rank; of all the rest both read one copy
        assert checkpoint.size_bytes - manifests < sources["own_node"] < checkpoint.size_bytes + manifests
        assert (sources["other_nodes"], sources["store"]) == (0, 0)
        assert cached(running, "n0", "job", running.control.checkpoints("job")[0].uri) == set()  # the job is over


def test_a_job_has_cache_servers_on_its_nodes_and_few_others(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    names = [f"n{i:02}" for i in range(20)]
    cluster.write_text(json.dumps({"nodes": [{"name": name, "type": "cpu", "slots": 1} for name in names]}))
    settings = Settings(home=tmp_path, cluster=cluster)
    one, many = order(num_slots=1), order(num_slots=1)
    slots = tuple(Slot(name, 0, "cpu") for name in reversed(names[4:14]))
    many = replace(many, allocation=replace(many.allocation, slots=slots))
    assert cache_servers._nodes(settings, one) == ("n0", *names[:7])  # n0 has left the cluster meanwhile
    assert cache_servers._nodes(settings, many) == (*names[4:14], "n00")
    assert cache_servers._nodes(Settings(home=tmp_path), one) == ("n0",)
