"""The transaction around a decision: optimistic, one at a time, recorded, and safe when a policy is not."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from sqlalchemy import create_engine, text

from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.allocator import Allocator, is_due
from elastic_core.control.scheduling.deciders import Pace
from elastic_core.control.scheduling.turns import Turn
from elastic_core.domain import Layout, Limits, Plan, ProfilePoint, SegmentState, Snapshot, Target, ThroughputModel
from elastic_core.errors import NotFound
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.baselines.fair_share import FairShare
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.trainer import Directive
from elastic_core.settings import Settings
from elastic_core.spec import QueueSpec, parse_cluster_spec
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_control, a_spec, settings


class Scripted:
    """A policy that does what the test says, and counts how often it is asked."""

    name: ClassVar[str] = "scripted"
    laws: ClassVar[frozenset[Law]] = frozenset()

    def __init__(self) -> None:
        self.plan: Callable[[Snapshot, Random], Plan] = FairShare().decide
        self.asked: list[Snapshot] = []

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        self.asked.append(snapshot)
        return self.plan(snapshot, rng)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    policy = Scripted()
    known = registry.get
    monkeypatch.setattr(registry, "get", lambda name: policy if name == "scripted" else known(name))
    return policy


@pytest.fixture
def plane(ledger_url: str, tmp_path: Path, clock: FakeClock, scripted: Scripted) -> Iterator[LedgerControl]:
    made = a_control(ledger_url, tmp_path, clock, policy="scripted")
    made.set_cluster(a_cluster())
    made.submit("job-a", a_spec(), FACTS)
    yield made
    made.close()


def decisions(url: str, *columns: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as sql:
        rows = sql.execute(text(f"SELECT {', '.join(columns)} FROM decisions ORDER BY id")).all()
    engine.dispose()
    return [tuple(row) for row in rows]


def fails(snapshot: Snapshot, rng: Random) -> Plan:
    raise ZeroDivisionError("no speed, no share")


def takes_too_much(snapshot: Snapshot, rng: Random) -> Plan:
    target = Target(counts={"cpu": 4}, global_batch=9999, layout=Layout(data=4), reason="all of it")
    return Plan(policy="scripted", targets={job.job_id: target for job in snapshot.jobs})


@pytest.mark.parametrize(
    ("plan", "says"), [(fails, "ZeroDivisionError: no speed, no share"), (takes_too_much, "global batch 9999")]
)
def test_a_policy_that_fails_is_replaced_by_a_fair_share_and_it_is_recorded(
    plane: LedgerControl, scripted: Scripted, ledger_url: str, plan: Callable[[Snapshot, Random], Plan], says: str
) -> None:
    scripted.plan = plan
    assert plane.acquire("job-a__seg_0").state is SegmentState.GRANTED
    (*_, (policy, wanted, failure)) = decisions(ledger_url, "policy", "wanted", "failure")
    assert (policy, wanted) == ("fair_share", "scripted")
    assert says in str(failure)


def test_a_predictor_that_fails_gives_no_model_and_decisions_go_on(ledger_url: str, plane: LedgerControl) -> None:
    def breaks(points: tuple[ProfilePoint, ...], limits: Limits) -> ThroughputModel:
        raise FloatingPointError("singular")

    plane.allocator = Allocator(plane._ledger, plane.settings, fit=breaks)
    assert plane.acquire("job-a__seg_0").state is SegmentState.GRANTED
    assert [job.throughput for job in plane.snapshot().jobs] == [None]


def test_a_policy_gets_its_state_and_the_version_as_seed(plane: LedgerControl, scripted: Scripted) -> None:
    def remembers(snapshot: Snapshot, rng: Random) -> Plan:
        seen = [*snapshot.policy_state.get("drawn", []), rng.random()]
        plan = FairShare().decide(snapshot, rng)
        return Plan(policy="scripted", targets=plan.targets, state={"drawn": seen})

    scripted.plan = remembers
    first, second = plane.decide("first"), plane.decide("second")
    plan = plane.last_plan()
    assert plan is not None
    assert plan.state["drawn"][-2:] == [Random(first).random(), Random(second).random()]


def test_heartbeats_and_observations_are_no_scheduling_events(plane: LedgerControl, scripted: Scripted) -> None:
    order = Life(plane, plane.trainer, "job-a").start()
    before = len(scripted.asked)
    for step in range(5):
        plane.trainer(order.token).heartbeat(a_beat(step))
        plane.trainer(order.token).commit(a_commit(order, step + 1))
    assert len(scripted.asked) == before


def test_the_plans_own_wake_up_is_taken_by_one_heartbeat(
    plane: LedgerControl, scripted: Scripted, clock: FakeClock
) -> None:
    def wakes(snapshot: Snapshot, rng: Random) -> Plan:
        plan = FairShare().decide(snapshot, rng)
        return Plan(policy="scripted", targets=plan.targets, wake_at=snapshot.now + 30)

    scripted.plan = wakes
    order = Life(plane, plane.trainer, "job-a").start()
    before = len(scripted.asked)
    trainer = plane.trainer(order.token)
    clock.advance(29)
    trainer.heartbeat(a_beat(1))
    assert len(scripted.asked) == before
    clock.advance(2)
    trainer.heartbeat(a_beat(2))
    trainer.heartbeat(a_beat(3))
    assert len(scripted.asked) == before + 1


def test_a_plan_made_from_an_old_snapshot_is_dropped(plane: LedgerControl, scripted: Scripted, ledger_url: str) -> None:
    def meanwhile(snapshot: Snapshot, rng: Random) -> Plan:
        if len(scripted.asked) == 1:  # while the policy thinks, a job arrives and asks
            plane.submit("job-b", a_spec(), FACTS)
            plane.acquire("job-b__seg_0")  # returns at once: a decision is in flight already
        return FairShare().decide(snapshot, rng)

    scripted.plan = meanwhile
    scripted.asked.clear()
    plane.acquire("job-a__seg_0")
    assert [len(snapshot.jobs) for snapshot in scripted.asked] == [1, 2]
    versions = [version for (version,) in decisions(ledger_url, "version")]
    assert scripted.asked[0].version not in versions
    assert scripted.asked[1].version in versions
    for job_id in ("job-a", "job-b"):
        status = plane.job(job_id)
        assert status.segment_state is SegmentState.GRANTED
        assert status.allocation is not None
        assert status.allocation.num_slots == 2


def test_where_events_come_faster_than_plans_the_third_is_in_force_late_and_the_rest_is_decided_after_it(
    plane: LedgerControl, scripted: Scripted, ledger_url: str
) -> None:
    """While the policy thinks, another job arrives and asks, five times over."""
    late: list[Callable[[], None]] = []
    plane.allocator._aside = late.append

    def meanwhile(snapshot: Snapshot, rng: Random) -> Plan:
        if (number := len(scripted.asked)) <= 5:
            plane.submit(f"job-{number}", a_spec(slots=(1, 1)), FACTS)
            plane.acquire(f"job-{number}__seg_0")
        return FairShare().decide(snapshot, rng)

    scripted.plan = meanwhile
    scripted.asked.clear()
    plane.acquire("job-a__seg_0")
    assert [len(snapshot.jobs) for snapshot in scripted.asked] == [1, 2, 3]
    (*_, (version,)) = decisions(ledger_url, "version")
    assert version == scripted.asked[2].version
    states = [plane.job(job_id).segment_state for job_id in ("job-a", "job-1", "job-2", "job-3")]
    assert states == [*[SegmentState.GRANTED] * 3, SegmentState.WAITING], "the third plan did not know the last"
    (rest,) = late
    rest()
    asked = len(scripted.asked)
    assert len(scripted.asked[-1].jobs) == 6
    plane.allocator.decide_pending()
    assert len(scripted.asked) == asked, "nothing is left undecided"


def test_of_plans_about_many_jobs_none_is_dropped_whatever_comes_meanwhile(
    plane: LedgerControl, scripted: Scripted, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "MANY_JOBS", 1)
    late: list[Callable[[], None]] = []
    plane.allocator._aside = late.append

    def meanwhile(snapshot: Snapshot, rng: Random) -> Plan:
        if len(scripted.asked) < 4:
            plane.decide("an event")  # another process, to the ledger: this one is at it
        return FairShare().decide(snapshot, rng)

    scripted.plan = meanwhile
    scripted.asked.clear()
    plane.acquire("job-a__seg_0")
    assert len(scripted.asked) == 1, "who asked has a plan, and waits for no other"
    late.pop()()
    assert len(scripted.asked) == 4
    versions = [version for (version,) in decisions(ledger_url, "version")]
    assert [snapshot.version for snapshot in scripted.asked] == versions[-4:]


def test_who_asks_about_many_jobs_waits_for_one_plan_and_not_for_what_comes_right_after_it(
    plane: LedgerControl, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "FEW_JOBS", 0)
    late: list[Callable[[], None]] = []
    plane.allocator._aside = late.append
    take, asked = plane.allocator._here.take, len(scripted.asked)

    def take_and_more_comes(most: int) -> Turn:
        turn = take(most)
        if len(scripted.asked) == asked + 1:
            plane._ledger.change(lambda tx: setattr(tx, "trigger", "right after it"))
        return turn

    monkeypatch.setattr(plane.allocator._here, "take", take_and_more_comes)
    plane.decide("an operator asks")
    assert len(scripted.asked) == asked + 1
    late.pop(0)()
    assert len(scripted.asked) == asked + 2
    assert not plane._ledger.read(is_due)


def test_after_a_decision_that_took_long_the_next_is_made_aside_but_for_who_asks_for_one(
    plane: LedgerControl, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], None]] = []
    plane.allocator._aside = late.append
    plane.acquire("job-a__seg_0")
    plane.submit("job-b", a_spec(slots=(1, 1)), FACTS)
    monkeypatch.setattr(Pace, "holds", True)
    asked = len(scripted.asked)
    plane.acquire("job-b__seg_0")
    plane.acquire("job-b__seg_0")
    plane.allocator.wake()
    assert len(scripted.asked) == asked
    late[0]()
    assert len(scripted.asked) == asked + 1
    assert {job.job_id for job in scripted.asked[-1].jobs} == {"job-a", "job-b"}
    late[1]()
    assert len(scripted.asked) == asked + 1, "nothing is left undecided"
    plane.decide("an operator asks")
    assert len(scripted.asked) == asked + 2


def test_the_pause_is_as_long_as_the_decision_and_short_ones_or_of_few_jobs_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, many = [100.0], Pace.MANY_JOBS
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pace = Pace()
    assert (pace.left, pace.holds) == (0.0, False)
    pace.note(began=97.0, jobs=many)
    assert (pace.left, pace.holds) == (3.0, True)
    pace.note(began=97.0, jobs=many - 1)
    assert (pace.left, pace.holds) == (3.0, False)
    pace.note(began=97.0, jobs=many)
    now[0] = 103.0
    assert (pace.left, pace.holds) == (0.0, False)
    pace.note(began=43.0, jobs=many)
    assert pace.left == Pace.MOST_PAUSE
    pace.note(began=102.5, jobs=many)
    assert (pace.left, pace.holds) == (0.5, False)


def test_a_late_plan_gives_nothing_to_who_has_ended_and_nothing_of_a_node_that_has_left(
    plane: LedgerControl, scripted: Scripted
) -> None:
    late: list[Callable[[], None]] = []
    plane.allocator._aside = late.append

    def meanwhile(snapshot: Snapshot, rng: Random) -> Plan:
        number = len(scripted.asked)
        if number == 1:
            plane.submit("job-b", a_spec(slots=(1, 2)), FACTS)
            plane.acquire("job-b__seg_0")
        elif number == 2:
            plane.decide("an event")
        elif number == 3:
            plane.cancel("job-b", "enough")
            plane.set_cluster(a_cluster({"node-a": 2}))
        return FairShare().decide(snapshot, rng)

    scripted.plan = meanwhile
    scripted.asked.clear()
    plane.acquire("job-a__seg_0")
    assert [len(snapshot.jobs) for snapshot in scripted.asked] == [1, 2, 2]
    for rest in (lambda: None, *late):
        rest()
        held = plane.job("job-a").allocation
        assert held is not None
        assert {slot.node for slot in held.slots} == {"node-a"}
        assert plane.job("job-b").allocation is None


def test_every_decision_can_be_made_again_from_its_record(plane: LedgerControl, ledger_url: str) -> None:
    order = Life(plane, plane.trainer, "job-a").start()
    plane.submit("job-b", a_spec(), FACTS)
    plane.acquire("job-b__seg_0")
    plane.trainer(order.token).commit(a_commit(order, 3, final=True))
    made = [int(str(number)) for (number,) in decisions(ledger_url, "id")]
    assert len(made) >= 3, "the boundary is the plan's own: it is not decided again"
    for number in made:
        replayed = plane.replay(number)
        assert replayed.same, replayed


@pytest.mark.parametrize("algorithm", ["bytegrad", "auto"])
def test_a_job_gets_the_exchange_that_its_spec_names_whatever_the_policy(
    plane: LedgerControl, ledger_url: str, algorithm: str
) -> None:
    plane.submit("job-b", a_spec(comm={"algorithm": algorithm, "allow": "lossy"}), FACTS)
    order = Life(plane, plane.trainer, "job-b").start()
    assert order.allocation.comm == algorithm
    handed_over = plane.trainer(order.token).commit(a_commit(order, 3, final=True)).order
    assert handed_over is not None
    assert handed_over.allocation.comm == algorithm
    for (number,) in decisions(ledger_url, "id"):
        assert plane.replay(int(str(number))).same


def test_a_replay_shows_that_a_policy_decides_otherwise_today(
    plane: LedgerControl, scripted: Scripted, ledger_url: str
) -> None:
    scripted.plan = lambda snapshot, rng: Plan(policy="scripted", targets=FairShare().decide(snapshot, rng).targets)
    Life(plane, plane.trainer, "job-a").start()
    (*_, (last,)) = decisions(ledger_url, "id")
    scripted.plan = lambda snapshot, rng: Plan(
        policy="scripted", targets={job.job_id: Target.nothing("changed my mind") for job in snapshot.jobs}
    )
    assert not plane.replay(int(str(last))).same


NUM_JOBS = 8


def test_threads_that_ask_at_once_all_get_what_fits(control: LedgerControl, ledger_url: str) -> None:
    control.set_cluster(a_cluster({"node-a": 4, "node-b": 4}))
    for number in range(NUM_JOBS):
        control.submit(f"job-{number}", a_spec(slots=(1, 1)), FACTS)
    ready = threading.Barrier(NUM_JOBS)

    def ask(number: int) -> None:
        ready.wait()
        control.acquire(f"job-{number}__seg_0")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(NUM_JOBS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert_all_granted(control)


@pytest.mark.nightly
def test_processes_that_ask_at_once_all_get_what_fits(control: LedgerControl, ledger_url: str, tmp_path: Path) -> None:
    control.set_cluster(a_cluster({"node-a": 4, "node-b": 4}))
    for number in range(NUM_JOBS):
        control.submit(f"job-{number}", a_spec(slots=(1, 1)), FACTS)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(2)
    halves = [range(half, NUM_JOBS, 2) for half in range(2)]
    processes = [context.Process(target=ask_all, args=(ledger_url, tmp_path, list(h), ready)) for h in halves]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert_all_granted(control)


def ask_all(url: str, home: Path, numbers: list[int], ready: threading.Barrier) -> None:
    control = a_control(url, home, FakeClock())
    ready.wait()
    for number in numbers:
        control.acquire(f"job-{number}__seg_0")
    control.close()


def assert_all_granted(control: LedgerControl) -> None:
    held = []
    for number in range(NUM_JOBS):
        status = control.job(f"job-{number}")
        assert status.segment_state is SegmentState.GRANTED, status.target_reason
        assert status.allocation is not None
        held += status.allocation.slots
    assert len(held) == len(set(held)) == NUM_JOBS


def test_an_event_left_undecided_by_a_crash_is_decided_with_the_next_heartbeat(
    control: LedgerControl, clock: FakeClock, ledger_url: str, tmp_path: Path
) -> None:
    control.submit("job-a", a_spec(slots=(1, 2)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    control.submit("job-b", a_spec(slots=(1, 2)), FACTS)
    engine = create_engine(ledger_url)
    with engine.begin() as sql:  # what `acquire` writes, without the decision after it
        sql.execute(text("UPDATE segments SET state = 'waiting', asked_at = 1 WHERE job_id = 'job-b'"))
        sql.execute(text("UPDATE scheduling SET version = version + 1, trigger = 'crashed'"))
    engine.dispose()
    control.trainer(order.token).heartbeat(a_beat(1))
    assert control.segment("job-b__seg_0").state is SegmentState.GRANTED


def test_what_another_process_has_decided_meanwhile_is_not_decided_again(
    control: LedgerControl, clock: FakeClock, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between seeing that something is undecided and claiming the right to decide it."""
    other = a_control(ledger_url, tmp_path, clock)
    deciding = control._ledger.deciding

    @contextmanager
    def after_the_other() -> Iterator[bool]:
        other.allocator.decide_pending()
        with deciding() as acquired:
            yield acquired

    before = len(decisions(ledger_url, "version"))
    monkeypatch.setattr(control._ledger, "deciding", after_the_other)
    control.decide("test")
    assert len(decisions(ledger_url, "version")) == before + 1
    other.close()


def test_a_decision_in_flight_is_left_alone(control: LedgerControl, clock: FakeClock, ledger_url: str) -> None:
    control.submit("job-a", a_spec(), FACTS)
    other = Ledger(ledger_url, settings(Path(), policy="fair_share"), clock)
    with other.deciding() as mine:
        assert mine
        with other.deciding() as also:
            assert not also
        assert control.acquire("job-a__seg_0").state is SegmentState.WAITING
    assert control.acquire("job-a__seg_0").state is SegmentState.GRANTED
    other.close()


def test_horizon_decides_by_default_and_keeps_priorities_and_shares_in_a_real_ledger(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    """Four slots; the low job may only have all of them, a higher one and its queue's owner each ask for theirs."""
    assert Settings().policy == "horizon"
    plane = a_control(ledger_url, tmp_path, clock, policy="horizon")
    nodes = a_cluster().model_dump(mode="json")["nodes"]
    plane.set_cluster(parse_cluster_spec({"nodes": nodes, "queues": [{"name": "prod", "guaranteed": {"cpu": 2}}]}))
    low = Life(plane, plane.trainer, "low")
    plane.submit("low", a_spec(slots=(4, 4)), FACTS)
    order = low.start()
    plane.submit("owner", a_spec(slots=(2, 2), queue="prod"), FACTS)
    plane.acquire("owner__seg_0")
    beat = plane.trainer(order.token).heartbeat(a_beat(1))
    assert beat.directive is Directive.BOUNDARY
    assert "put first by the guaranteed share of queue prod" in plane.explain("owner").reason
    plane.submit("high", a_spec(slots=(2, 2), priority=5), FACTS)
    plane.acquire("high__seg_0")
    plan = plane.last_plan()
    assert plan is not None
    assert {name: target.num_slots for name, target in plan.targets.items()} == {"low": 0, "owner": 2, "high": 2}
    for number in range(1, 20):
        with suppress(NotFound):
            assert plane.replay(number).same
    plane.close()


def test_no_decision_gives_a_queue_more_slots_than_its_limit_and_it_replays(control: LedgerControl) -> None:
    """Four slots: three for a queue that may have three, of which a user may have two, and the fourth for others."""
    queue = QueueSpec(name="team", max_slots=3, max_slots_per_user=2)
    control.set_cluster(a_cluster().model_copy(update={"queues": (queue,)}))
    for job_id, user in (("anns", "ann"), ("anns-too", "ann"), ("bens", "ben"), ("zoes", "zoe")):
        caller = Caller(name=user, way=Way.REST)
        control.acting(caller).submit(job_id, a_spec(queue="team", slots=(1, 4)), FACTS)
        control.acquire(f"{job_id}__seg_0")
    control.submit("others", a_spec(slots=(1, 4)), FACTS)
    control.acquire("others__seg_0")
    plan = control.last_plan()
    assert plan is not None
    wanted = {job_id: target.num_slots for job_id, target in plan.targets.items()}
    assert wanted == {"anns": 1, "anns-too": 1, "bens": 1, "zoes": 0, "others": 1}
    assert "queue team may hold 3 at once, of which jobs before it leave 0" in control.explain("zoes").reason
    decision = control.explain("zoes").decision_id
    assert decision is not None
    assert control.replay(decision).same
