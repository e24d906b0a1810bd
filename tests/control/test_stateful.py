"""Random lives of several jobs on a small pool, with crashes, lost answers, silence, users and a changing cluster.

After every step the promises are checked in the database; at the end everybody who still wants to run, runs.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, SegmentState, Slot
from elastic_core.errors import Conflict, Fenced, UserError
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder, ProcessGroup
from elastic_core.protocol.trainer import Directive
from tests.builders import FACTS, FakeClock, a_beat, a_cluster, a_commit, a_control, a_spec
from tests.conftest import TestServer
from tests.effort import EFFORT

JOBS = ("job-a", "job-b", "job-c")
ANY_JOB = st.sampled_from(JOBS)
BIG, SMALL = {"node-a": 2, "node-b": 2}, {"node-a": 2}
ALL_SLOTS = tuple(Slot(node, index, "cpu") for node, count in BIG.items() for index in range(count))


BROKEN = """
    SELECT 'slot twice', count(*) FROM lease_slots WHERE released_at IS NULL GROUP BY slot HAVING count(*) > 1
    UNION ALL SELECT 'slot of a lease that is over', epoch FROM lease_slots s JOIN leases l USING (epoch)
        WHERE s.released_at IS NULL AND l.released_at IS NOT NULL
    UNION ALL SELECT 'slot says otherwise than leases', s.index FROM slots s
        WHERE s.held <> EXISTS (SELECT 1 FROM lease_slots l WHERE l.slot = s.id AND l.released_at IS NULL)
    UNION ALL SELECT 'seconds held say otherwise than leases', 0 FROM (
        SELECT job_id, s.node, sum(h.released_at - l.granted_at) AS seconds
        FROM lease_slots h JOIN leases l USING (epoch) JOIN slots s ON s.id = h.slot
        WHERE h.released_at IS NOT NULL GROUP BY job_id, s.node
    ) told FULL JOIN held_seconds kept USING (job_id, node)
        WHERE abs(coalesce(told.seconds, 0) - coalesce(kept.seconds, 0)) > 1e-3
    UNION ALL SELECT 'step went back', a.id FROM checkpoints a JOIN checkpoints b USING (job_id, lineage)
        WHERE a.id < b.id AND (a.step > b.step OR a.samples > b.samples)
    UNION ALL SELECT 'undecided', version FROM scheduling WHERE version <> decided_version
    UNION ALL SELECT 'decision failed', id FROM decisions WHERE failure IS NOT NULL
    UNION ALL SELECT 'owner', origin_epoch FROM leases WHERE released_at IS NULL
"""


@dataclass
class Processes:
    """A process group of the test: what real trainers would know."""

    order: LaunchOrder
    step: int
    agent_token: str
    alive: bool = True
    stopping: bool = False
    draining: tuple[Slot, ...] = ()  # on which processes still are, after a resize in place
    last_report: ExitReport = field(default_factory=lambda: ExitReport(kind="stopped"))


class LedgerMachine(RuleBasedStateMachine):
    server: ClassVar[TestServer]
    numbers: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.name = f"stateful_{next(self.numbers)}"
        url = self.server.create_ledger(self.name).render_as_string(hide_password=False)
        self.clock = FakeClock()
        self.control: LedgerControl = a_control(url, Path(mkdtemp()), self.clock)
        self.engine: Engine = create_engine(url)
        self.control.set_cluster(a_cluster(BIG))
        self.clock.advance(1_000)
        self.groups: dict[int, Processes] = {}
        self.submitted: set[str] = set()

    def teardown(self) -> None:
        self.everybody_runs_in_the_end()
        self.engine.dispose()
        self.control.close()
        self.server.drop(self.name)

    # what users and operators do

    @rule(job=ANY_JOB, low=st.integers(1, 2), high=st.integers(2, 4))
    def submit(self, job: str, low: int, high: int) -> None:
        with suppress(Conflict, UserError):  # another spec before, or too large for what is left of the cluster
            self.control.submit(job, a_spec(slots=(low, high)), FACTS)
            self.submitted.add(job)

    @rule(job=ANY_JOB)
    def ask(self, job: str) -> None:
        if self.known(job):
            self.control.acquire(self.control.job(job).segment_id)

    @rule(job=ANY_JOB)
    def launch(self, job: str) -> None:
        if not self.known(job):
            return
        segment = self.control.segment(self.control.job(job).segment_id)
        if segment.state is not SegmentState.GRANTED:
            return
        with suppress(Conflict):  # its slots left the cluster before it was started
            order = self.control.launch_order(segment.segment_id)
            starts = order.restore.candidates[0].step if order.restore.candidates else 0
            self.groups.setdefault(order.origin_epoch, Processes(order, starts, order.agent_token))

    @rule(job=ANY_JOB, what=st.sampled_from(["cancel", "revive", "revoke", "rollback"]))
    def user_acts(self, job: str, what: str) -> None:
        if not self.known(job):
            return
        status = self.control.job(job)
        if what == "cancel":
            self.control.cancel(job, "by hand")
        elif what == "revive" and status.state is not JobState.FINISHED:
            self.control.revive(job)
        elif what == "revoke":
            self.control.revoke(status.segment_id, "by hand")
        elif what == "rollback" and (found := self.control.checkpoints(job)):
            self.control.rollback(job, found[0].checkpoint_id)

    @rule(nodes=st.sampled_from([BIG, SMALL]))
    def resize_cluster(self, nodes: dict[str, int]) -> None:
        self.control.set_cluster(a_cluster(nodes))

    @rule(seconds=st.sampled_from([1.0, 30.0, 65.0, 95.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # what processes do

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), steps=st.integers(0, 3))
    def train(self, data: st.DataObject, steps: int) -> None:
        group = self.some(data)
        if not group.alive:
            return
        group.step += steps
        answer = self.control.trainer(group.order.token).heartbeat(a_beat(group.step))
        if answer.directive in (Directive.STOP, Directive.FENCED):
            self.die(group, "stopped")
        group.stopping = answer.directive is Directive.BOUNDARY

    @precondition(lambda self: self.groups)
    @rule(
        data=st.data(), final=st.booleans(), finished=st.booleans(), answer_lost=st.booleans(),
        ready=st.sampled_from([None, (), ALL_SLOTS]),
    )  # fmt: skip
    def commit(
        self, data: st.DataObject, final: bool, finished: bool, answer_lost: bool, ready: tuple[Slot, ...] | None
    ) -> None:
        group = self.some(data)
        if not group.alive:
            return
        trainer = self.control.trainer(group.order.token)
        group.step += 1
        wanted = a_commit(
            group.order, group.step, final=final or group.stopping, finished=finished and final, ready=ready
        )
        try:
            answer = trainer.commit(wanted)
            if answer_lost:
                assert trainer.commit(wanted).checkpoint_id == answer.checkpoint_id
        except Fenced:
            self.die(group, "stopped")
            return
        if answer.order is not None:
            lost = set(group.order.allocation.slots) - set(answer.order.allocation.slots)
            group.draining = (*group.draining, *sorted(lost))
            group.order, group.stopping = answer.order, False
        elif answer.directive is Directive.BOUNDARY:
            self.die(group, "finished" if wanted.finished else "boundary")

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def vacate(self, data: st.DataObject) -> None:
        group = self.some(data)
        if not (group.alive and group.draining):
            return
        gone, group.draining = group.draining, ()
        try:
            self.control.trainer(group.agent_token).release_slots(gone, group.order.epoch)
        except Fenced:
            self.die(group, "stopped")

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), kind=st.sampled_from(["infrastructure", "user_error"]), tells=st.booleans())
    def crash(self, data: st.DataObject, kind: str, tells: bool) -> None:
        group = self.some(data)
        if group.alive:
            self.die(group, kind, tells=tells)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        group = self.some(data)
        if not group.alive:
            self.control.trainer(group.agent_token).exited(group.last_report)

    @rule()
    def reconcile(self) -> None:
        answer = self.control.reconcile(
            [
                ProcessGroup(origin_epoch=origin, segment_id=group.order.segment_id, alive=group.alive)
                for origin, group in self.groups.items()
            ]
        )
        for origin in answer.stop:
            self.die(self.groups[origin], "stopped")

    # helpers

    def known(self, job: str) -> bool:
        return job in self.submitted

    def some(self, data: st.DataObject) -> Processes:
        return self.groups[data.draw(st.sampled_from(sorted(self.groups)))]

    def die(self, group: Processes, kind: str, *, tells: bool = True) -> None:
        group.alive = False
        group.last_report = ExitReport(kind=kind, error="" if kind in ("boundary", "finished") else "test")
        if tells:
            self.control.trainer(group.agent_token).exited(group.last_report)

    # promises

    @invariant()
    def the_ledger_keeps_its_promises(self) -> None:
        found = self.rows(BROKEN)
        assert [row for row in found if row[0] != "owner"] == []
        owners = {origin for _, origin in found}
        # Real processes, not only the ledger: those that own a lease never share a slot.
        groups = [group for origin, group in self.groups.items() if group.alive and origin in owners]
        held = [slot for group in groups for slot in (*group.order.allocation.slots, *group.draining)]
        assert len(held) == len(set(held))

    @invariant()
    def every_active_job_runs_or_says_why_not(self) -> None:
        for job in self.control.jobs(active_only=True):
            runs = job.segment_state in (SegmentState.GRANTED, SegmentState.RUNNING)
            assert job.segment_state.open
            assert runs or job.target_reason, job

    def everybody_runs_in_the_end(self) -> None:
        """With nobody interfering any more, every job that can run does, whatever happened before."""
        self.control.set_cluster(a_cluster(BIG))
        for _ in range(12):  # of less than a lease life: enough for leases to expire and their processes to be stopped
            self.reconcile()
            for job in self.control.jobs(active_only=True):
                self.control.acquire(job.segment_id)
                self.launch(job.job_id)
            for group in list(self.groups.values()):
                self.finish(group)
            self.clock.advance(45)
        assert [job.job_id for job in self.control.jobs(active_only=True)] == []
        for (number,) in self.rows("SELECT id FROM decisions ORDER BY id DESC LIMIT 5"):
            assert self.control.replay(number).same

    def finish(self, group: Processes) -> None:
        if not group.alive:
            return
        group.step += 1
        try:
            self.control.trainer(group.order.token).commit(a_commit(group.order, group.step, finished=True))
        except Fenced:
            self.die(group, "stopped")
        else:
            self.die(group, "finished")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as sql:
            return [tuple(row) for row in sql.execute(text(query))]


def test_random_lives_keep_the_promises(postgres_server: TestServer) -> None:
    LedgerMachine.server = postgres_server
    chosen = settings(
        max_examples=6 * EFFORT, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck),
        database=None,
    )  # fmt: skip
    run_state_machine_as_test(LedgerMachine, settings=chosen)
