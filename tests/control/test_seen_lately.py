"""How often trainers send heartbeats: as set while they are few, and never more in all than the server wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.control.plane import LedgerControl
from elastic_core.control.seen_lately import LOOK_EVERY_SECONDS, seconds_between
from elastic_core.settings import Settings
from tests.builders import FACTS, FakeClock, Life, a_beat, a_control, a_spec
from tests.ledger_engines import heard


def settings(**values: float) -> Settings:
    return Settings(home=Path("unused"), **values)


@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(30, 300), st.floats(1, 1000))
def test_all_together_keep_to_the_rate_unless_a_lease_might_end(live, every, lease, rate):
    own = settings(heartbeat_seconds=every, lease_seconds=lease, heartbeats_per_second=rate)
    seconds = seconds_between(live, own)
    assert seconds >= every
    assert live / seconds <= rate * (1 + 1e-9) or seconds >= lease / 4 * (1 - 1e-9)
    assert seconds <= max(every, lease / 4)


@pytest.mark.parametrize(("jobs", "seconds"), [(0, 2), (100, 2), (1000, 20), (100_000, 22.5)])
def test_a_thousand_jobs_send_theirs_every_twenty_seconds(jobs, seconds):
    assert seconds_between(jobs, settings()) == seconds


def test_an_answer_says_when_the_next_heartbeat_is_wanted_and_jobs_are_counted_anew(
    ledger_url: str, tmp_path: Path, clock: FakeClock
) -> None:
    control = a_control(ledger_url, tmp_path, clock, heartbeats_per_second=0.125)
    for number in (1, 2):
        life = Life(control, control.trainer, f"job-{number}")
        control.submit(life.job_id, a_spec(slots=(1, 2)), FACTS)
        order = life.start()
        clock.advance(LOOK_EVERY_SECONDS)
        assert control.trainer(order.token).heartbeat(a_beat(1)).heartbeat_seconds == 8.0 * number
    control.close()


def test_a_heartbeat_asks_its_ledger_twice(control: LedgerControl) -> None:
    """What it is answered from, and what it tells: a thousand jobs send one every few seconds."""
    control.submit("job-a", a_spec(slots=(1, 4)), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    trainer.heartbeat(a_beat(1))
    asked: list[str] = []
    with heard(control._ledger._engine, "before_cursor_execute", lambda _c, _u, statement, *_: asked.append(statement)):
        assert trainer.heartbeat(a_beat(2)).steady
    assert [statement.split()[0] for statement in asked] == ["SELECT", "WITH"]
