"""Which jobs a policy is told to have ended without finishing, so that it does not take them for finished ones."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.snapshots import CUT_OFF_SECONDS
from elastic_core.domain import EndedJob, Plan, to_json
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.protocol.encoding import dumps
from tests.builders import FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation

TASK = a_spec().entry_point


def submit(control: LedgerControl, job_id: str, **spec: object) -> Life:
    control.submit(job_id, a_spec(**spec), FACTS)
    control.acquire(f"{job_id}__seg_0")
    return Life(control, control.trainer, job_id)


def test_endings_while_nobody_could_decide_are_told_however_long_that_was_and_however_many_they_are(
    control: LedgerControl, clock: FakeClock, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`horizon` takes the work of a job that it does not see again for all of it, unless it is told otherwise."""
    control.set_policy("horizon")
    life = submit(control, "job-a")
    submit(control, "job-b")
    control.trainer(life.start().token).heartbeat(a_beat(100))
    clock.advance(1.0)
    control.cancel("job-b", "so that a decision sees what job-a has done")

    def fails(*asked: object) -> Plan:
        raise ZeroDivisionError("no speed, no share")

    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(Horizon, "decide", fails)
        control.cancel("job-a", "enough")
    many_are_cancelled(ledger_url, 300, at=clock() + 1.0)
    clock.advance(3 * CUT_OFF_SECONDS)
    shown = control.snapshot()
    assert {"job-a", "job-b"} < set(shown.not_finished)
    assert len(shown.not_finished) == 302
    assert shown.policy_state["tasks"][TASK]["told"]["job-a"][0] == 1000
    submit(control, "job-c")
    after = control.snapshot()
    assert after.policy_state["tasks"][TASK]["works"] == []
    clock.advance(CUT_OFF_SECONDS + 1.0)
    submit(control, "job-d")
    assert control.snapshot().not_finished == ()  # told once, and not for ever


def test_a_short_job_is_remembered_with_the_work_that_it_did_though_no_decision_ever_saw_it_at_work(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.set_policy("horizon")
    life = submit(control, "job-a", work={"samples": 100_000, "target_loss": 0.1})
    order = life.start()
    clock.advance(5.0)
    control.trainer(order.token).commit(a_commit(order, 300, samples=4_800, finished=True))
    submit(control, "job-b")
    assert control.snapshot().policy_state["tasks"][TASK]["works"] == [4_800.0]


def test_a_job_that_was_cancelled_is_remembered_with_what_it_had_done_as_cut_off(
    control: LedgerControl, clock: FakeClock
) -> None:
    control.set_policy("horizon")
    control.trainer(submit(control, "job-a").start().token).heartbeat(a_beat(100))
    clock.advance(1.0)
    submit(control, "job-b")
    control.cancel("job-a", "enough")
    remembered = control.snapshot().policy_state["tasks"][TASK]
    assert (remembered["works"], remembered["cut_off"]) == ([], [[0, 1000.0]])
    assert control.snapshot().ended == (EndedJob(job_id="job-a", work=0, completed=False),)  # it committed nothing


@pytest.mark.parametrize(
    "unreadable", ["""jsonb_set(spec, '{work}', '{"furlongs": 3}')""", "spec - 'work'", "spec - 'entry_point'"]
)
def test_a_finished_job_whose_spec_cannot_be_read_is_told_as_cut_off_and_stops_nobody(
    control: LedgerControl, ledger_url: str, unreadable: str
) -> None:
    until = {"samples": 100_000, "target_loss": 0.1}
    for job_id, step in (("job-a", 300), ("job-b", 400)):
        life = submit(control, job_id, work=until)
        order = life.start()
        control.trainer(order.token).observe([an_observation(step, order, loss=0.05)])
        control.trainer(order.token).commit(a_commit(order, step, samples=16 * step, finished=True))
        life.leave(order)
    engine = create_engine(ledger_url)
    with engine.begin() as sql:
        sql.exec_driver_sql(f"UPDATE jobs SET spec = {unreadable} WHERE id = 'job-a'")
    engine.dispose()
    with capture_logs() as logs:
        ended = sorted(control.snapshot().ended, key=lambda job: job.job_id)
    assert [(job.job_id, job.work, job.completed) for job in ended] == [("job-a", 4800, False), ("job-b", 6400, True)]
    assert [entry["job"] for entry in logs if "cannot be read" in entry["event"]] == ["job-a"]


def many_are_cancelled(url: str, count: int, at: float) -> None:
    engine = create_engine(url)
    with engine.begin() as sql:
        sql.execute(
            text(
                "INSERT INTO jobs (id, spec, facts, state, lineage, total_samples, submitted_at, finished_at, notes,"
                " results) VALUES (:id, CAST(:spec AS jsonb), CAST(:facts AS jsonb), 'cancelled', 0, 10000, :at, :at,"
                " '[]', '{}')"
            ),
            [{"id": f"gone-{number}", "spec": dumps(to_json(a_spec())), "facts": dumps(to_json(FACTS)), "at": at}
             for number in range(count)],
        )  # fmt: skip
    engine.dispose()
