"""The files of a run dir: their names and keys, which an upgrade must not change, and what is said of a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_core.domain import Slot, to_json
from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import (
    AccessBrokerProcess,
    AgentProcess,
    CacheServerAddress,
    CoordinatorHeard,
    GroupStop,
    Message,
    NodeNetwork,
    NodeWorkers,
    OrderAllocation,
    OrderInForce,
    Rendezvous,
    ServingState,
    SlotId,
    SpawnPlan,
    StandbyReady,
    StandbyRequest,
    WorkerError,
    WorkerProcess,
    WorkerProcesses,
    WorkersByRank,
    WorkerSettings,
)
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.state.memory_tier.cache_client import Access
from elastic_core.state.store_access.store_grants import StoreAccess
from tests.launch.builders import order

SLOT = SlotId("n0", 1, "cpu")
PLAN = SpawnPlan(
    argv=("python",), env={"A": "1"}, cwd="/p", grace_seconds=60.0, cpu_slots=(("n0", 1, "cpu"),),
    networks={"n0": NodeNetwork("10.0.0.7", "ns0")},
)  # fmt: skip
FILES: list[tuple[Message, int | str | None, str, Any]] = [
    (AgentProcess(7, 9), None, "agent.json", {"pid": 7, "start_time": 9}),
    (
        WorkerProcesses((WorkerProcess(7, 9, "n0:1"),)),
        None,
        "workers.json",
        [{"pid": 7, "start_time": 9, "slot": "n0:1", "host": ""}],
    ),
    (
        NodeWorkers((WorkerProcess(7, 9, "n1:1", host="n1"),)),
        "n1",
        "workers@n1.json",
        [{"pid": 7, "start_time": 9, "slot": "n1:1", "host": "n1"}],
    ),
    (CoordinatorHeard(12.5), None, "heard.json", {"at": 12.5}),
    (WorkersByRank((2, 0)), None, "ranks.json", [2, 0]),
    (ServingState(7, 9, "n0:1"), 3, "serving-3.json", {"pid": 7, "start_time": 9, "slot": "n0:1", "host": ""}),
    (StandbyReady(7, 9, "n0:1"), 3, "waiting-3.json", {"pid": 7, "start_time": 9, "slot": "n0:1", "host": ""}),
    (
        StandbyRequest(2, (SLOT,)),
        None,
        "wanted.json",
        {"request": 2, "slots": [{"node": "n0", "index": 1, "type": "cpu"}]},
    ),
    (
        PLAN,
        None,
        "spawn.json",
        {
            "argv": ["python"],
            "env": {"A": "1"},
            "cwd": "/p",
            "grace_seconds": 60.0,
            "cpu_slots": [["n0", 1, "cpu"]],
            "user": [],
            "networks": {"n0": {"address": "10.0.0.7", "namespace": "ns0"}},
            "log_bytes": 0,
            "node": "",
            "silence_seconds": 0.0,
        },
    ),
    (GroupStop(5.0, 99.5), None, "stop.json", {"grace_seconds": 5.0, "kill_at": 99.5, "before_agent": False}),
    (WorkerError("ValueError: x", "..."), 4, "error-rank4.json", {"error": "ValueError: x", "traceback": "..."}),
    (
        Rendezvous("rendezvous-6.sock", b"\x01\xff", 6),
        None,
        "rendezvous.json",
        {"socket": "rendezvous-6.sock", "token": "01ff", "generation": 6, "host": "", "port": 0},
    ),
    (
        WorkerSettings(Path("/p"), "/s", "examples.*", "http://c", "http://s3", 90.0),
        None,
        "settings.json",
        {
            "project": "/p",
            "store": "/s",
            "tasks": "examples.*",
            "control_url": "http://c",
            "s3_endpoint": "http://s3",
            "hang_seconds": 90.0,
        },
    ),
    (
        Access(Path("/m"), ("n0", "n1"), "job", b"\x01\xff"),
        None,
        "memory.json",
        {"folder": "/m", "nodes": ["n0", "n1"], "job": "job", "key": "01ff"},
    ),
    (
        CacheServerAddress.of(ProcessId(7, 9), socket="s", host="127.0.0.1", port=80),
        "n1",
        "n1.json",
        {"pid": 7, "start_time": 9, "socket": "s", "host": "127.0.0.1", "port": 80},
    ),
    (AccessBrokerProcess(7, 9), None, "process.json", {"pid": 7, "start_time": 9}),
    (StoreAccess("s", "{}", b"\x01\xff"), None, "store.json", {"socket": "s", "grant": "{}", "key": "01ff"}),
]
IDS = [name for _, _, name, _ in FILES]


@pytest.mark.parametrize(("message", "of", "name", "content"), FILES, ids=IDS)
def test_names_and_keys_are_those_of_groups_that_run(
    tmp_path: Path, message: Message, of: int | str | None, name: str, content: Any
) -> None:
    folder = RunDir(tmp_path)
    folder.write(message, of)
    assert json.loads((tmp_path / name).read_text()) == content
    assert folder.read(type(message), of) == message


@pytest.mark.parametrize(("message", "of", "name", "content"), FILES, ids=IDS)
def test_a_file_without_one_of_its_keys_is_named_with_the_key(
    tmp_path: Path, message: Message, of: int | str | None, name: str, content: Any
) -> None:
    broken = content[0] if isinstance(content, list) else content
    optional = {"traceback", "control_url", "s3_endpoint", "user", "networks", "log_bytes", "node"}
    optional |= {"silence_seconds", "hang_seconds", "before_agent"}
    if isinstance(message, Rendezvous | WorkerProcess | WorkerProcesses):
        optional |= {"host", "port"}
    for key in [key for key in broken if key not in optional] if isinstance(broken, dict) else []:
        value = {other: broken[other] for other in broken if other != key}
        (tmp_path / name).write_text(json.dumps([value] if isinstance(content, list) else value))
        with pytest.raises(InfrastructureError, match=rf"{name} cannot be used: the field '.*{key}' is missing"):
            RunDir(tmp_path).read(type(message), of)


@pytest.mark.parametrize(
    ("kind", "name", "text", "want"),
    [
        (AgentProcess, "agent.json", '{"pid": "7", "start_time": 9}', "'pid' is '7' instead of an integer"),
        (AgentProcess, "agent.json", '{"pid": true, "start_time": 9}', "'pid' is True instead of an integer"),
        (AgentProcess, "agent.json", "[]", "it is a list instead of an object"),
        (AgentProcess, "agent.json", '{"pid": 7', "agent.json is not JSON: "),
        (WorkerProcesses, "workers.json", "{}", "the field 'workers' is an object instead of a list"),
        (WorkerProcesses, "workers.json", "[7]", r"the field 'workers\[0\]' is 7 instead of an object"),
        (StandbyRequest, "wanted.json", '{"request": 1, "slots": [{"node": "n"}]}', r"'slots\[0\].index' is missing"),
        (OrderInForce, "order.json", '{"segment_id": "s", "epoch": 1, "allocation": null}', "'allocation' is None"),
        (Access, "memory.json", '{"folder": "", "nodes": [], "job": "", "key": "x"}', "'key' is not in hexadecimal"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_named_with_its_field(
    tmp_path: Path, kind: type[Message], name: str, text: str, want: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InfrastructureError, match=want) as caught:
        RunDir(tmp_path).read(kind)
    assert str(tmp_path / name) in str(caught.value)


def test_a_positional_entry_of_another_length_is_malformed(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    folder.write(PLAN)
    folder.write_json("spawn.json", folder.read_json("spawn.json") | {"cpu_slots": [["n0", 1]]})
    with pytest.raises(InfrastructureError, match=r"'cpu_slots\[0\]' has 2 entries instead of 3"):
        folder.read(SpawnPlan)


def test_keys_of_a_newer_writer_are_ignored_and_a_whole_number_is_a_number(tmp_path: Path) -> None:
    RunDir(tmp_path).write_json("stop.json", {"grace_seconds": 5, "kill_at": 7.5, "added_later": {}})
    message = RunDir(tmp_path).read(GroupStop)
    assert message == GroupStop(5.0, 7.5)
    assert type(message.grace_seconds) is float


def test_an_agent_reads_what_it_needs_of_a_launch_order(tmp_path: Path) -> None:
    folder, launched = RunDir(tmp_path), order(num_slots=2)
    folder.write_order(launched)
    slots = (SlotId("n0", 0, "cpu"), SlotId("n0", 1, "cpu"))
    assert folder.read(OrderInForce) == OrderInForce(launched.segment_id, launched.epoch, OrderAllocation(slots))


def test_a_slot_is_written_as_the_ledgers_own() -> None:
    slot = Slot("n0", 1, "cpu")
    assert to_json(slot) == {"node": SLOT.node, "index": SLOT.index, "type": SLOT.type}
