"""What is asked of a ledger with many jobs is answered by its indexes, and no more is read than is wanted."""

from __future__ import annotations

from sqlalchemy import create_engine, event, text

from elastic_core.control.ledger import reads
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, FakeClock, Life, a_commit, a_spec

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
