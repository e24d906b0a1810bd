"""What the ledger sums up in SQL is what `snapshot.job_reports` and `snapshot.past` define."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from elastic_core.control.ledger import profiles
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.tables import CheckpointRow, LeaseRow, LeaseSumsRow, SegmentRow, TargetRow
from elastic_core.control.plane import LedgerControl
from elastic_core.control.transitions import node_health, progress
from elastic_core.domain import Layout, Observation, Slot
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.snapshot import job_reports
from elastic_core.snapshot.past import Lease, past
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation
from tests.effort import EFFORT

SECONDS = st.one_of(st.floats(1e-3, 10.0), st.sampled_from([0.0, -1.0, 5e-324, 1e300, inf, nan]))
NOISE = st.one_of(st.none(), st.integers(1, 9).map(float), st.sampled_from([inf, nan, 1e200, -1e200]))
REPORTS = st.lists(
    st.fixed_dictionaries(
        {
            "num_slots": st.sampled_from([1, 2]),
            "global_batch": st.sampled_from([32, 64]),
            "step_seconds": SECONDS,
            "sync_seconds": st.floats(0.0, 1.0),
            "grad_sqr": NOISE,
            "grad_var": NOISE,
            "layout": st.sampled_from([None, Layout(data=1, tensor=2)]),
            "comm": st.sampled_from(["allreduce", "bytegrad"]),
        }
    ),
    max_size=70,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=REPORTS)
def test_sql_sums_up_reports_as_they_are_defined_to_be(
    control: LedgerControl, reports: list[dict[str, object]]
) -> None:
    job_id = f"job-{len(control.jobs())}"
    control.submit(job_id, a_spec(slots=(1, 1)), FACTS)
    order = Life(control, control.trainer, job_id).start()
    made: list[Observation] = [an_observation(n + 1, order, **report) for n, report in enumerate(reports)]
    ledger: Ledger = control._ledger
    store(control, order, made)
    in_sql = ledger.read(lambda tx: (profiles.profiles(tx, [job_id]), profiles.noise_scales(tx, [job_id])))
    assert rounded(in_sql[0].get(job_id, ())) == rounded(job_reports.profile(made))
    defined = job_reports.noise_scale(made)
    assert in_sql[1].get(job_id) == (None if defined is None else pytest.approx(defined))
    control.cancel(job_id, "seen")
    Life(control, control.trainer, job_id).leave(order, "stopped")


def store(control: LedgerControl, order: LaunchOrder, made: list[Observation]) -> None:
    """Unchecked, as in a ledger of before: there are numbers that no job needs, and what earlier leases had."""
    claims = control.trainer(order.token)._claims
    control._ledger.write(lambda tx: progress.store(tx, claims, progress.guard(tx, claims), made))


def rounded(points: object) -> list[object]:
    assert isinstance(points, tuple)
    return [replace(p, step_seconds=round(p.step_seconds, 9), sync_seconds=round(p.sync_seconds, 9)) for p in points]


GO_ON, RESIZE, LEAVE, CRASH, CRASH_UNHEARD = (
    "goes on",
    "is resized",
    "leaves",
    "crashes",
    "crashes before it is heard of",
)
TICKS = st.floats(0.0, 100.0)
ENDS = st.lists(
    st.fixed_dictionaries(
        {
            "how": st.sampled_from([GO_ON, RESIZE, LEAVE, CRASH]),
            "heard_of": st.booleans(),
            "tells_first_step": st.booleans(),
            "tells_last_step": st.booleans(),
            "ticks": st.tuples(TICKS, TICKS, TICKS, TICKS, TICKS),
        }
    ),
    max_size=8,
)
SUMMED_UP = st.lists(st.booleans(), min_size=8, max_size=8)  # after this end


@settings(max_examples=10 * EFFORT, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=ENDS, summed_up=SUMMED_UP)
def test_sql_sums_up_leases_as_they_are_defined_to_be(
    control: LedgerControl, clock: FakeClock, ends: list[dict[str, Any]], summed_up: list[bool]
) -> None:
    """Whenever the oldest were summed up for good."""
    job_id = f"job-{len(control.jobs())}"
    pool = tuple(slot for node in control.snapshot().nodes for slot in node.slots())
    control.submit(job_id, a_spec(), FACTS)
    job = _Lived(control, clock, Life(control, control.trainer, job_id), pool)
    try:
        ledger: Ledger = control._ledger
        for end, is_summed_up in zip(ends, summed_up, strict=False):
            job.end_lease(**end)
            if is_summed_up:
                profiles.sum_up_leases(ledger, most=0)
        clock.advance(1.0)
        in_sql, leases = ledger.read(lambda tx: (profiles.pasts(tx, [job_id])[job_id], _leases(tx, job_id)))
        assert astuple(in_sql) == pytest.approx(astuple(past(leases, clock())), abs=1e-5)
    finally:
        job.give_everything_back()


def test_the_best_speed_that_is_known_is_that_of_the_latest_reports_of_one_of_the_last_leases(
    control: LedgerControl,
) -> None:
    """The job's own, else that of another job of its task on as many slots as it may have."""
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    for speeds in ((5.0, 1.0), (2.0, 3.0), (9.0, 2.0)):  # of each lease: at first, and at last
        order = life.start()
        reports = [
            an_observation(step, order, samples_per_second=speeds[step > profiles.LATEST_REPORTS])
            for step in range(1, 2 * profiles.LATEST_REPORTS + 1)
        ]
        control.trainer(order.token).observe(reports)
        life.leave(order, "infrastructure")
    ledger: Ledger = control._ledger
    for job_id in ("job-a", "job-b"):
        wanted = {job_id: ("examples.digits:Digits", a_spec().limits(), False)}
        known = ledger.read(lambda tx, wanted=wanted: profiles.best_known(tx, wanted))
        assert known[job_id].samples_per_second == 3.0
    too_few = {"job-b": ("examples.digits:Digits", a_spec(slots=(1, 2)).limits(), False)}
    assert ledger.read(lambda tx: profiles.best_known(tx, too_few)) == {}


def test_work_goes_at_the_samples_a_second_or_by_their_gain_in_the_unit_of_who_asks(control: LedgerControl) -> None:
    """Twice as fast at a batch of which a sample is worth a third as much is slower in progress."""
    control.submit("job-a", a_spec(), FACTS)
    life = Life(control, control.trainer, "job-a")
    for speed, worth in ((4.0, 0.25), (2.0, 0.75)):
        order = life.start()
        gain = worth * order.allocation.global_batch / 16
        report = an_observation(1, order, samples_per_second=speed, progress=1.0, gain=gain)
        control.trainer(order.token).observe([report])
        life.leave(order, "infrastructure")
    ledger: Ledger = control._ledger
    for in_progress, work in ((False, 4.0), (True, 1.5)):
        wanted = {"job-a": ("examples.digits:Digits", a_spec().limits(), in_progress)}
        known = ledger.read(lambda tx, wanted=wanted: profiles.best_known(tx, wanted))["job-a"]
        assert (known.samples_per_second, known.work_per_second) == (4.0, pytest.approx(work))
        assert known.seconds(60.0) == pytest.approx(60.0 / work)
        assert known.seconds(60.0, samples=4.0) == pytest.approx(1.0)


def test_all_leases_but_the_newest_are_summed_up_where_they_are_too_many(
    control: LedgerControl, clock: FakeClock
) -> None:
    def summed_up_to() -> int | None:
        return ledger.read(lambda tx: tx.session.scalar(select(LeaseSumsRow.up_to_epoch)))

    ledger: Ledger = control._ledger
    pool = tuple(slot for node in control.snapshot().nodes for slot in node.slots())
    control.submit("job-a", a_spec(), FACTS)
    job = _Lived(control, clock, Life(control, control.trainer, "job-a"), pool)
    for _ in range(4):
        job.end_lease(GO_ON, heard_of=True, tells_first_step=True, tells_last_step=True, ticks=(1.0,) * 5)
    profiles.sum_up_leases(ledger, most=5)
    assert summed_up_to() is None
    profiles.sum_up_leases(ledger, most=4)
    assert summed_up_to() == job.order.epoch - 1
    job.end_lease(CRASH, heard_of=True, tells_first_step=True, tells_last_step=True, ticks=(1.0,) * 5)
    profiles.sum_up_leases(ledger, most=0)
    assert summed_up_to() == job.order.epoch - 2, "a segment that is tried again is summed up once it is over"
    job.end_lease(GO_ON, heard_of=True, tells_first_step=True, tells_last_step=True, ticks=(1.0,) * 5)
    profiles.sum_up_leases(ledger, most=0)
    assert summed_up_to() == job.order.epoch - 1


class _Lived:
    """A job that holds its slots, and may have to share them with another one."""

    def __init__(self, control: LedgerControl, clock: FakeClock, life: Life, pool: tuple[Slot, ...]) -> None:
        self.control, self.clock, self.life, self.pool = control, clock, life, pool
        self.step = 1
        self.rival: LaunchOrder | None = None
        self.order = life.start()

    def end_lease(
        self, how: str, *, heard_of: bool, tells_first_step: bool, tells_last_step: bool, ticks: tuple[float, ...]
    ) -> None:
        trainer, self.step = self.control.trainer(self.order.token), self.step + 2
        first = {"first_step_at": self.clock.advance(ticks[0])} if tells_first_step else {}
        last = {"last_step_at": self.clock.advance(ticks[1])} if tells_last_step else {}
        trainer.commit(a_commit(self.order, self.step - 1, timings=first))
        if how == LEAVE:
            trainer.commit(a_commit(self.order, self.step, final=True, draining=True, timings=last))
        if how in (LEAVE, CRASH):
            self._is_started_again("boundary" if how == LEAVE else "infrastructure", ticks, heard_of=heard_of)
            return
        if how == RESIZE:
            self._change_share()
        trainer.heartbeat(a_beat(self.step - 1))
        self.clock.advance(ticks[2])
        free = tuple(slot for slot in self.pool if slot not in self.order.allocation.slots)
        self.control._ledger.write(self._expect_another_exchange)
        final = a_commit(self.order, self.step, final=True, ready=free, timings=last)
        before, self.order = self.order, _present(trainer.commit(final).order)
        self.control.trainer(self.order.token).heartbeat(a_beat(self.step))
        lost = {*before.allocation.slots} - {*self.order.allocation.slots}
        if lost:
            agent = self.control.trainer(self.life.agents[self.order.origin_epoch])
            agent.release_slots(sorted(lost), self.order.epoch)
            self.rival = self.control.launch_order(f"{self._rival_id}__seg_0")

    def _expect_another_exchange(self, tx: Tx) -> None:
        """A decision counts with another exchange on the same slots: nobody is moved for it."""
        row = tx.row(TargetRow, self.life.job_id)
        assert row is not None
        row.target = {**row.target, "expected_comm": f"of step {self.step}"}

    def _is_started_again(self, kind: str, ticks: tuple[float, ...], *, heard_of: bool) -> None:
        self.clock.advance(ticks[2])
        self.life.leave(self.order, kind)
        self.clock.advance(ticks[3])
        self.control.acquire(self.life.segment_id())
        self.clock.advance(ticks[4])
        self.order = self.control.launch_order(self.life.segment_id())
        self.life.agents[self.order.origin_epoch] = self.order.agent_token
        if heard_of:
            self.control.trainer(self.order.token).heartbeat(a_beat(self.step))

    def _change_share(self) -> None:
        if self.rival is None:
            self._rival_id = f"rival-{len(self.control.jobs())}"
            self.control.submit(self._rival_id, a_spec(slots=(2, 2)), FACTS)
            self.control.acquire(f"{self._rival_id}__seg_0")
        else:
            self.control.cancel(self._rival_id, "seen")
            Life(self.control, self.control.trainer, self._rival_id).leave(self.rival, "stopped")
            self.rival = None

    def give_everything_back(self) -> None:
        if self.rival is not None:
            self._change_share()
        self.control.cancel(self.life.job_id, "seen")
        self.life.leave(self.order, "stopped")
        self.clock.advance(node_health.WINDOW_SECONDS)  # so that crashes of many cases set no node aside


def _present(order: LaunchOrder | None) -> LaunchOrder:
    assert order is not None
    return order


def _leases(tx: Tx, job_id: str) -> list[Lease]:
    """As the rows have them."""
    rows = tx.session.execute(
        select(LeaseRow, SegmentRow).join(SegmentRow, SegmentRow.id == LeaseRow.segment_id)
        .where(LeaseRow.job_id == job_id).order_by(LeaseRow.epoch)
    )  # fmt: skip
    leases = []
    for lease, segment in rows:
        saved = list(tx.session.scalars(
            select(CheckpointRow).where(CheckpointRow.epoch == lease.epoch).order_by(CheckpointRow.step)
        ))  # fmt: skip
        end = next((row for row in saved if row.id == segment.end_checkpoint_id), None)
        leases.append(
            Lease(
                allocation=allocation(lease),
                restarted=lease.epoch == lease.origin_epoch,
                granted_at=lease.granted_at,
                asked_at=segment.asked_at,
                started_at=lease.started_at,
                first_step_at=saved[0].timings.get("first_step_at") if saved else None,
                last_step_at=None if end is None else end.timings.get("last_step_at"),
                ended_at=segment.ended_at,
                released_at=lease.released_at,
            )
        )
    return leases
