"""What is asked of a ledger with many jobs is answered by its indexes, and no more is read than is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Executable, create_engine, event, text

from elastic_core.control.ledger import leases, reads
from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling import snapshots
from elastic_core.control.transitions.removable import removable
from elastic_core.domain import Allocation, from_json
from elastic_core.protocol.rest.job_details import Part
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_spec

MANY = """
    INSERT INTO jobs (id, spec, facts, state, lineage, total_samples, submitted_at, notes, results)
    SELECT 'old-' || i, spec, facts, 'finished', 0, 1, i, '[]', jsonb_build_object(
        'registered_model', 'm' || i, 'registered_version', '1',
        'registered_versions', jsonb_build_object('m' || i || '/1', '{}'::jsonb))
    FROM jobs, generate_series(1, 2000) AS i WHERE id = 'job-a'
"""


def test_who_registered_a_version_is_found_without_reading_all_jobs(control: LedgerControl, ledger_url: str) -> None:
    control.submit("job-a", a_spec(), FACTS)
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(MANY))
        connection.execute(text("ANALYZE jobs"))
        query = reads.who_registered("m7", "1").compile(connection, compile_kwargs={"literal_binds": True})
        plan = "\n".join(line for (line,) in connection.exec_driver_sql(f"EXPLAIN {query}"))
    engine.dispose()
    assert "Seq Scan" not in plan, plan


LONG = """
    INSERT INTO segments (id, job_id, index, lineage, state, attempt, failures, start_step, created_at, handed_over)
    SELECT 'job-a__old_' || i, 'job-a', -i, 0, 'committed', 0, 0, 0, 0, false FROM generate_series(100, 3000) AS i;
    INSERT INTO leases (epoch, origin_epoch, job_id, segment_id, attempt, allocation, num_slots, granted_at, expires_at,
                        released_at)
    SELECT -i, -i, 'job-a', 'job-a__old_' || i, 0, allocation, num_slots, 0, 0, 0
    FROM leases, generate_series(100, 3000) AS i WHERE epoch = (SELECT max(epoch) FROM leases WHERE job_id = 'job-a');
    ANALYZE segments; ANALYZE leases
"""  # a job of three thousand segments, each with a lease


def lived_long(control: LedgerControl, ledger_url: str) -> None:
    """Three jobs: one that has had many leases, and holds its last one; one that has had one, and one that had none."""
    for job_id in ("job-a", "job-b", "job-c"):
        control.submit(job_id, a_spec(slots=(1, 1)), FACTS)
    for job_id in ("job-a", "job-b"):
        Life(control, control.trainer, job_id).start()
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(LONG))
    engine.dispose()


def test_what_jobs_held_last_is_what_their_newest_leases_say(control: LedgerControl, ledger_url: str) -> None:
    lived_long(control, ledger_url)
    asked = ["job-b", "job-a", "job-c", "job-x"]
    newest = text("SELECT DISTINCT ON (job_id) job_id, allocation FROM leases ORDER BY job_id, epoch DESC")
    held = control._ledger.read(
        lambda tx: {job_id: from_json(Allocation, said) for job_id, said in tx.session.execute(newest)}
    )
    assert held.keys() == {"job-a", "job-b"}
    slots = control._ledger.read(lambda tx: leases.last_slots(tx, asked))
    assert slots == {job_id: one.slots for job_id, one in held.items()}
    batches = {job.job_id: job.last_batch for job in control.snapshot().jobs}
    assert batches == {job_id: one.global_batch for job_id, one in held.items()}


def most_rows(ledger_url: str, query: Executable, wanted: Mapping[str, Any]) -> int:
    """That any step of the query read."""
    found: list[int] = []
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        said = query.compile(connection)  # type: ignore[attr-defined]
        asked = f"EXPLAIN (ANALYZE, FORMAT JSON) {said}"
        (steps,) = connection.exec_driver_sql(asked, said.construct_params(dict(wanted))).scalar_one()
    engine.dispose()
    left = [steps["Plan"]]
    while left:
        step = left.pop()
        found.append(step["Actual Rows"] + step.get("Rows Removed by Filter", 0))
        left += step.get("Plans", [])
    return max(found)


def test_of_a_long_life_only_the_newest_lease_is_read(control: LedgerControl, ledger_url: str) -> None:
    lived_long(control, ledger_url)
    for query in (leases._LAST_ALLOCATIONS, snapshots._LAST_BATCHES):
        assert most_rows(ledger_url, query, {"jobs": ["job-a", "job-b", "job-c"]}) <= 3


def test_of_a_long_life_only_what_came_after_a_segment_is_read(control: LedgerControl, ledger_url: str) -> None:
    lived_long(control, ledger_url)
    whole = [segment.segment_id for segment in control.segments("job-a")]

    def read(after: str | None) -> list[str]:
        found = control._ledger.read(lambda tx: reads.segments_from(tx, "job-a", after))
        assert most_rows(ledger_url, reads.from_segment("job-a", after), {}) == max(1, len(found))
        return [segment.segment_id for segment in found]

    assert read("job-a__old_101") == whole[-3:] == ["job-a__old_101", "job-a__old_100", "job-a__seg_0"]
    assert read("job-a__seg_0") == whole[-1:]
    assert read(None) == whole[-1:]
    assert read("job-b__seg_0") == whole[-1:], "it is none of its own"


def test_a_window_holds_who_is_active_and_the_newest_of_those_that_ended_in_it(
    control: LedgerControl, clock: FakeClock
) -> None:
    for number in range(4):
        control.submit(f"ended-{number}", a_spec(), FACTS)
        control.cancel(f"ended-{number}", "enough")
        clock.advance(10)
    for name in ("first", "second"):
        control.submit(name, a_spec(), FACTS)
        clock.advance(1)
    since = clock.now - 35  # the first one ended before
    assert [job.job_id for job in control.jobs_of_window(since, 30)] == [
        "first", "second", "ended-3", "ended-2", "ended-1",
    ]  # fmt: skip
    assert [job.job_id for job in control.jobs_of_window(since, 1)] == ["first", "second", "ended-3"]


def test_a_timeline_shows_each_attempt_while_it_held_its_slots(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    life, began = Life(control, control.trainer, "job-a"), clock.now
    life.start()
    clock.advance(10)
    control.set_cluster(a_cluster({"node-c": 2}))  # its nodes are lost: it waits

    def shown(since: float) -> list[tuple[int, float, float | None]]:
        return [(s.attempt, s.since - began, s.until and s.until - began) for s in control.timeline(began + since)]

    clock.advance(10)
    assert shown(0) == [(0, 0, 10)]
    control.set_cluster(a_cluster({"node-a": 2, "node-b": 2}))
    life.start()
    lost, again = control.timeline(began)
    assert shown(0) == [(0, 0, 10), (1, 20, None)]
    assert (lost.segment_id, lost.grant_reason) == (again.segment_id, None)
    assert (lost.end_reason or "").startswith("slots left the cluster: ")
    assert (bool(again.grant_reason), again.end_reason) == (True, None)
    assert shown(15) == [(1, 20, None)], "the first one was over before"


def test_a_page_of_a_timeline_has_what_was_held_within_its_window(control: LedgerControl, clock: FakeClock) -> None:
    began = clock.now
    lives = [Life(control, control.trainer, f"job-{number}") for number in range(3)]
    orders = []
    for life in lives:
        control.submit(life.job_id, a_spec(slots=(1, 1)), FACTS)
        orders.append(life.start())
        clock.advance(10)

    def page(since: float, until: float, **part: int) -> tuple[int, list[str]]:
        found = control.timeline_page(began + since, began + until, Part(**part))
        return found.total, [stretch.job_id for stretch in found.held]

    assert page(0, 30) == (3, ["job-0", "job-1", "job-2"])
    assert page(0, 30, offset=1, limit=1) == (3, ["job-1"])
    assert page(0, 15) == (2, ["job-0", "job-1"])
    assert page(0, 5) == (1, ["job-0"])
    control.cancel("job-0", "enough")
    lives[0].leave(orders[0], "infrastructure", "cancelled")
    assert page(31, 60) == (2, ["job-1", "job-2"]), "the first one was over before"
    assert page(0, 60)[0] == 3


def test_where_jobs_are_on_their_way_is_told_of_those_that_there_are(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    control.submit("job-b", a_spec(slots=(4, 4)), FACTS)
    created = clock.now
    clock.advance(5)
    order = Life(control, control.trainer, "job-a").start()
    told = control.courses(["job-a", "job-b", "job-x"])
    assert told["job-a"].waiting_since is None, "it holds slots"
    assert (told["job-b"].waiting_since, told.keys()) == (created, {"job-a", "job-b"})
    clock.advance(5)
    control.acquire("job-b__seg_0")
    assert control.courses(["job-b"])["job-b"].waiting_since == clock.now
    assert told["job-a"].num_resizes == 0
    again = control.trainer(order.token).commit(a_commit(order, 5, final=True))
    assert again.order is not None, "it keeps its slots, which is no resize"
    assert control.courses(["job-a"])["job-a"].num_resizes == 0


def test_neither_the_inputs_of_a_decision_nor_a_policys_state_are_read_by_who_does_not_want_them(
    control: LedgerControl,
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.acquire("job-a__seg_0")
    asked: list[str] = []
    engine = control._ledger._engine
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: asked.append(statement))
    control.last_plan()
    control.explain("job-a")
    control._ledger.change(lambda tx: tx.scheduling())
    assert not any("decisions.snapshot" in statement or "policy_state" in statement for statement in asked)
    control.decision(1)
    assert any("decisions.snapshot" in statement for statement in asked)


def test_no_look_at_a_job_drags_along_what_its_commits_say_that_they_read(
    control: LedgerControl, clock: FakeClock
) -> None:
    """Fingerprints may be megabytes a checkpoint. Whether one is given up is told without its metrics and timings."""
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer, told = control.trainer(order.token), [{"epochs": [{"number": step}]} for step in range(1, 7)]
    read: set[str] = set()

    def note(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        if cursor.description is not None and "checkpoints" in statement:
            read.update(column.name for column in cursor.description)

    event.listen(control._ledger._engine, "after_cursor_execute", note)
    for step, fingerprints in enumerate(told, start=1):
        trainer.commit(a_commit(order, step, fingerprints=fingerprints))
    control._ledger.read(removable)
    assert "committed_at" in read
    assert not {name for name in read if "fingerprints" in name}
    read.clear()
    assert control._ledger.read(removable) == (), "none is old enough"
    assert "committed_at" in read
    assert not {name for name in read if any(large in name for large in ("fingerprints", "metrics", "timings"))}
    clock.advance(600.0)
    trainer.heartbeat(a_beat(6))
    assert [record.step for record in control._ledger.read(removable)] == [1, 2, 3]
    assert [record.step for record in control.stored_checkpoints("job-a")] == [1, 2, 3, 4, 5, 6]
    assert not {name for name in read if any(large in name for large in ("fingerprints", "metrics", "timings"))}
    for look in (control.jobs, control.snapshot, lambda: control.checkpoints("job-a"), lambda: control.reconcile([])):
        look()
    control.launch_order(order.segment_id)
    trainer.commit(a_commit(order, 9, final=True))
    assert not {name for name in read if "fingerprints" in name}
    assert control.reads("job-a") == [*told, {}]
