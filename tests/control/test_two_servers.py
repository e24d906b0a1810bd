"""Two API servers over one ledger at once, each with an allocator of its own: every invariant holds, whoever is asked.

Jobs live in threads of their own and send every request to the one server or the other, as behind a balancer: they ask,
report, send heartbeats, commit and leave, while others decide, set nodes aside and reconcile.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, Slot
from elastic_core.errors import Conflict, Fenced
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.protocol.trainer import Directive
from tests.builders import CONTROL_SECRET, FACTS, a_beat, a_cluster, a_commit, a_control, a_spec, an_observation
from tests.control.serving import app_before, served

JOBS, SEGMENTS, STEPS = 6, 3, 5  # of each: so many boundaries, each after so many steps

# What the ledger's own history must say afterwards, whatever its constraints refused on the way.
AUDIT = {
    "a lease on a slot of a job that is over": """
        SELECT l.epoch FROM lease_slots h JOIN leases l ON l.epoch = h.epoch JOIN jobs j ON j.id = l.job_id
        WHERE h.released_at IS NULL AND j.state <> 'active'
    """,
    "two open segments of a job": """
        SELECT job_id FROM segments WHERE state IN ('created', 'waiting', 'granted', 'running')
        GROUP BY job_id HAVING count(*) > 1
    """,
    "a step that went back": """
        SELECT c.id FROM checkpoints c JOIN checkpoints p ON p.id = c.previous_id
        WHERE c.lineage = p.lineage AND (c.step < p.step OR c.samples < p.samples)
    """,
    "a commit that went on from another than the last": """
        SELECT previous_id FROM checkpoints WHERE previous_id IS NOT NULL GROUP BY previous_id HAVING count(*) > 1
    """,
    "one version decided twice": "SELECT version FROM decisions GROUP BY version HAVING count(*) > 1",
}


class Slots:
    """On which slots processes are: the truth that the ledger must never contradict."""

    def __init__(self) -> None:
        self._job_on: dict[Slot, str] = {}
        self._lock = threading.Lock()

    def enter(self, order: LaunchOrder) -> None:
        with self._lock:
            taken = {slot: self._job_on[slot] for slot in order.allocation.slots if slot in self._job_on}
            assert taken == {}, f"{order.job_id} was granted slots on which others' processes still are"
            self._job_on |= dict.fromkeys(order.allocation.slots, order.job_id)

    def leave(self, order: LaunchOrder) -> None:
        with self._lock:
            for slot in order.allocation.slots:
                del self._job_on[slot]


class OneOfTwo:
    """A client that asks either server, by chance."""

    def __init__(self, urls: list[str], seed: int, stack: ExitStack) -> None:
        self._urls, self._rng, self._stack = urls, Random(seed), stack
        self._services = [HttpControl(f"{url}/elastic", CONTROL_SECRET, patience_seconds=60) for url in urls]
        for service in self._services:
            stack.callback(service.close)

    @property
    def service(self) -> HttpControl:
        return self._rng.choice(self._services)

    def trainer(self, token: str) -> HttpTrainer:
        made = HttpTrainer(f"{self._rng.choice(self._urls)}/elastic", token, patience_seconds=60)
        self._stack.callback(made.close)
        return made


def live(client: OneOfTwo, job_id: str, slots: Slots, stop: threading.Event) -> None:
    """A job from its submission to its end; a boundary wherever it is asked for one, and every so many steps."""
    client.service.submit(job_id, a_spec(job_id, slots=(1, 3)), FACTS)
    step = 0
    for segment in range(SEGMENTS):
        order = granted(client, job_id, stop)
        slots.enter(order)
        trainer = client.trainer(order.token)
        for _ in range(STEPS):
            step += 1
            answer = trainer.heartbeat(a_beat(step))
            trainer.observe([an_observation(step, order)])
            if answer.directive is Directive.BOUNDARY:
                break
        trainer.commit(a_commit(order, step, final=True, finished=segment == SEGMENTS - 1))
        slots.leave(order)
        report = ExitReport(kind=ExitKind.FINISHED if segment == SEGMENTS - 1 else ExitKind.BOUNDARY)
        client.service.process_group_gone(order.origin_epoch, report)
        client.service.process_group_gone(order.origin_epoch, report)  # told twice, perhaps to the other one
        with pytest.raises(Fenced):
            client.trainer(order.token).commit(a_commit(order, step + 1))


def granted(client: OneOfTwo, job_id: str, stop: threading.Event) -> LaunchOrder:
    while not stop.wait(0.02):
        segment_id = client.service.job(job_id).segment_id
        client.service.acquire(segment_id)
        try:
            return client.service.launch_order(segment_id)
        except Conflict:
            continue  # it waits, or its last processes have just been reported as gone
    raise AssertionError(f"{job_id} got no slots before the test was over")


def disturb(client: OneOfTwo, plane: LedgerControl, stop: threading.Event) -> list[int]:
    """What goes on beside jobs: decisions, a node that is set aside and taken back, a reader of the outbox.

    Returns the positions of the events that this reader saw.
    """
    rng, seen = Random(7), [0]
    while not stop.wait(0.05):
        seen += [event.position for event in plane.feed.events(seen[-1])]
        node = rng.choice(("node-a", "node-b"))
        client.service.decide("asked for at once, by many")
        client.service.set_aside_node(node, "looked at")
        client.service.jobs()
        client.service.take_back_node(node)
    while events := plane.feed.events(seen[-1]):
        seen += [event.position for event in events]
    return seen[1:]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_invariant_holds_with_two_servers_at_once(ledger_url: str, tmp_path: Path) -> None:
    stop, slots = threading.Event(), Slots()
    with ExitStack() as stack:
        urls, planes = [], []
        for _ in range(2):
            plane = a_control(ledger_url, tmp_path, time.time)
            stack.callback(plane.close)
            planes.append(plane)
            urls.append(stack.enter_context(served(stack.enter_context(app_before(plane)))))
        clients = [OneOfTwo(urls, seed, stack) for seed in range(JOBS + 2)]
        clients[0].service.set_cluster(a_cluster({"node-a": 2, "node-b": 2}))
        with ThreadPoolExecutor(JOBS + 2) as threads:
            disturbing = [
                threads.submit(disturb, client, one, stop) for client, one in zip(clients[JOBS:], planes, strict=True)
            ]
            try:
                lives = [threads.submit(live, clients[n], f"job-{n}", slots, stop) for n in range(JOBS)]
                for one in lives:
                    one.result()
            finally:
                stop.set()
            seen = [one.result() for one in disturbing]
        assert {job.state for job in clients[0].service.jobs()} == {JobState.FINISHED}
        engine = create_engine(ledger_url)
        with engine.connect() as connection:
            found = {what: connection.execute(text(query)).all() for what, query in AUDIT.items()}
            decisions = list(connection.execute(text("SELECT id FROM decisions ORDER BY id")).scalars())
            last = connection.execute(text("SELECT job_id, max(step) FROM checkpoints GROUP BY job_id")).all()
            events = list(connection.execute(text("SELECT position FROM events ORDER BY position")).scalars())
        engine.dispose()
        assert seen == [events, events], "each reader saw every event once, in the one order"
        assert {what: rows for what, rows in found.items() if rows} == {}
        assert len(last) == JOBS
        assert all(plane.replay(number).same for number in decisions)
