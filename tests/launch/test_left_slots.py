"""Slots that a group leaves while it goes on: its agent has the ledger know once nothing is there, and not before."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout, Slot
from elastic_core.errors import Fenced
from elastic_core.host.messages import SlotId
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.on_ray.slot_return import SlotReturn
from elastic_core.launch.workers.left_slots import LeftSlots
from tests.launch.builders import AGENT_TOKEN, agent_of, order, scripted, wait_for, wait_until_dead, wait_until_ready
from tests.processes import children

NAMES = st.integers(0, 5).map(lambda index: SlotId("n0", index, "cpu"))
FORGED = SlotId("n0", 1, "forged")
ORDERS = st.lists(st.frozensets(NAMES, min_size=1), min_size=1, max_size=8)


@given(ORDERS, st.data())
def test_what_is_left_is_what_an_order_named_and_the_one_in_force_does_not_until_it_was_told(
    orders: list[frozenset[SlotId]], data: st.DataObject
) -> None:
    left, expected, before = LeftSlots(), set[SlotId](), frozenset[SlotId]()
    for named in orders:
        expected = (expected | before) - named
        before = named
        left.heed(named)
        left.heed(named)
        assert set(left.cleared(())) == expected
        occupied = data.draw(st.frozensets(NAMES))
        assert set(left.cleared(occupied)) == expected - occupied
        told = data.draw(st.frozensets(st.sampled_from(sorted(expected, key=str)))) if expected else frozenset()
        left.told(told)
        expected -= told


def test_a_slot_is_what_its_node_and_index_say_whatever_an_order_calls_its_type() -> None:
    """The order in force is a file that a job's own code can write."""
    left, one = LeftSlots(), SlotId("n0", 1, "cpu")
    left.heed([SlotId("n0", 0, "cpu"), one])
    left.heed([SlotId("n0", 0, "cpu"), FORGED])
    left.heed([SlotId("n0", 0, "cpu")])
    assert left.cleared([one]) == []


def test_what_an_order_named_that_nobody_has_read_is_left_as_well() -> None:
    left, standby = LeftSlots(), SlotId("n0", 1, "cpu")
    left.heed([SlotId("n0", 0, "cpu")])
    left.began([standby])
    assert left.cleared([standby]) == []
    assert left.cleared() == [standby]


@dataclass
class ControlApi:
    """Writes down what it is asked, and answers what it is told to: at first that it is away."""

    url: str
    away: bool = True
    over: set[int] = field(default_factory=set)  # epochs
    asked: list[tuple[int, list[int]]] = field(default_factory=list)  # epoch and indices of slots, as they were taken
    tokens: set[str] = field(default_factory=set)
    refused: list[int] = field(default_factory=list)

    def answer(self, name: str, token: str, body: bytes) -> tuple[int, bytes]:
        self.tokens.add(token)
        if self.away or name != "release_slots":
            return 503, b"{}"
        told = json.loads(body)
        if told["epoch"] in self.over:
            self.refused.append(told["epoch"])
            return 409, json.dumps({"code": Fenced.code, "message": "over"}).encode()
        self.asked.append((told["epoch"], [slot["index"] for slot in told["slots"]]))
        return 200, b"null"


@pytest.fixture
def api() -> Iterator[ControlApi]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            token = self.headers["authorization"].removeprefix("Bearer ")
            status, answer = made.answer(self.path.rpartition("/")[2], token, body)
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = ControlApi(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


def pass_on(folder: RunDir, epoch: int, *slots: int) -> None:
    """The lease passes on: the order in force is of another epoch, and names these slots."""
    before = order()
    named = tuple(Slot("n0", index, "cpu") for index in slots)
    allocation = replace(before.allocation, slots=named, layout=Layout(data=len(named)))
    folder.write_order(replace(before, epoch=epoch, allocation=allocation))


def started(
    home: Path, api: ControlApi, behaviours: str, num_slots: int
) -> tuple[LocalLauncher, RunDir, list[ProcessId]]:
    launcher = scripted(home, behaviours, api.url)
    launcher.start(order(num_slots=num_slots))
    return launcher, RunDir.of(home, 7), wait_until_ready(launcher, num_slots)


def test_slots_are_given_back_with_the_agents_token_once_nothing_is_left_there(home: Path, api: ControlApi) -> None:
    api.away = False
    launcher, folder, (_, second, third) = started(home, api, "boundary,stubborn,stubborn", 3)
    pass_on(folder, 8, 0)
    time.sleep(0.5)
    assert api.asked == [], "they are still there"
    second.send(signal.SIGKILL)
    wait_for(lambda: api.asked == [(8, [1])])
    wait_for(lambda: len(children(agent_of(launcher).pid)) == 2)  # it has heard the answer
    third.send(signal.SIGKILL)
    wait_for(lambda: api.asked == [(8, [1]), (8, [2])])
    time.sleep(1.5)  # longer than between two looks
    assert api.asked == [(8, [1]), (8, [2])], "once"
    assert api.tokens == {AGENT_TOKEN}
    launcher.stop(7, grace_seconds=20)
    wait_until_dead(launcher)


def test_an_api_that_is_away_is_asked_until_it_has_heard_and_nobody_waits_for_it(home: Path, api: ControlApi) -> None:
    launcher, folder, (first, second, third) = started(home, api, "boundary,boundary,boundary", 3)
    pass_on(folder, 8, 0, 1)
    third.send(signal.SIGTERM)
    wait_for(lambda: api.tokens)
    pass_on(folder, 9, 0)
    second.send(signal.SIGTERM)  # meanwhile more is left
    wait_for(lambda: not second.alive())
    api.away = False
    wait_for(lambda: {index for epoch, slots in api.asked if epoch == 9 for index in slots} == {1, 2})
    first.send(signal.SIGKILL)
    wait_until_dead(launcher)


def test_what_was_refused_under_an_epoch_that_is_over_is_told_under_the_next(home: Path, api: ControlApi) -> None:
    api.away, api.over = False, {8}
    launcher, folder, (_, second) = started(home, api, "boundary,boundary", 2)
    pass_on(folder, 8, 0)
    second.send(signal.SIGTERM)
    wait_for(lambda: api.refused == [8])
    time.sleep(1.5)
    assert api.refused == [8], "it is not asked again what it will not take"
    pass_on(folder, 9, 0)
    wait_for(lambda: api.asked == [(9, [1])])
    launcher.stop(7, grace_seconds=20)
    wait_until_dead(launcher)


def test_slots_that_come_back_before_they_were_clear_are_not_given_back(home: Path, api: ControlApi) -> None:
    api.away = False
    launcher, folder, (_, second) = started(home, api, "boundary,stubborn", 2)
    pass_on(folder, 8, 0)
    pass_on(folder, 9, 0, 1)
    second.send(signal.SIGKILL)
    wait_until_dead(launcher)
    assert api.asked == []


def test_a_coordinator_gives_back_what_its_nodes_say_is_clear(api: ControlApi) -> None:
    api.away = False
    slot_return, occupied = SlotReturn(api.url, AGENT_TOKEN), {1, 2}

    def turn() -> None:
        slot_return.turn(8, lambda slot: slot.index not in occupied)

    slot_return.left.heed([SlotId("n0", index, "cpu") for index in range(3)])
    slot_return.left.heed([SlotId("n0", 0, "cpu")])
    turn()
    assert api.asked == []
    occupied.remove(2)
    wait_for(lambda: turn() or len(slot_return.left.cleared()) == 1)
    assert api.asked == [(8, [2])]
    occupied.clear()
    wait_for(lambda: turn() or not slot_return.left.cleared())
    turn()
    assert api.asked == [(8, [2]), (8, [1])]
    assert api.tokens == {AGENT_TOKEN}
