"""Which jobs a policy is told to have ended without finishing, so that it does not take them for finished ones."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from elastic_core.control.plane import LedgerControl
from elastic_core.control.scheduling.snapshots import CUT_OFF_SECONDS
from elastic_core.domain import Plan, to_json
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.protocol.encoding import dumps
from tests.builders import FACTS, FakeClock, Life, a_beat, a_spec

TASK = a_spec().entry_point


def submit(control: LedgerControl, job_id: str) -> Life:
    control.submit(job_id, a_spec(), FACTS)
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
