"""What `elastic jobs` says of jobs that are over, and that nothing of them can be cancelled."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from elastic_core.commands.jobs.jobs_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Conflict
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_commit, a_spec


def elastic(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def trained(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    trainer.commit(a_commit(order, 400, size_bytes=2048, metrics={"loss": 0.25}))
    trainer.commit(a_commit(order, 1000, finished=True, size_bytes=2048, metrics={"loss": 0.5}))


def test_a_finished_job_shows_how_long_it_took_on_what_and_what_is_left_of_it(control: LedgerControl) -> None:
    trained(control)
    shown = elastic("show", "job-a").stdout
    last, best = reversed(control.checkpoints("job-a"))
    assert "took       0.0 s, held slots for 0.0 s" in shown
    assert "segments   1, on 4 slots" in shown
    assert f"last       checkpoint {last.checkpoint_id}, step 1000, 2.0 KiB, {last.uri}" in shown
    assert f"best       checkpoint {best.checkpoint_id}, step 400, 2.0 KiB, {best.uri}, loss 0.25" in shown
    assert "left  " not in shown


def test_a_job_that_never_held_slots_says_so(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    control.cancel("job-a", "enough")
    shown = elastic("show", "job-a").stdout
    assert "never held any slots" in shown
    assert "checkpoint none is left" in shown


def test_waiting_after_a_lost_attempt_is_no_time_that_slots_were_held(control: LedgerControl, clock: FakeClock) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "job-a").start()
    clock.advance(36)
    control.set_cluster(a_cluster({"node-c": 2}))  # its nodes are lost
    clock.advance(3600)
    (segment,) = json.loads(elastic("segments", "job-a", "--json").stdout)
    assert segment["released_at"] - segment["granted_at"] == 36
    (row,) = [line for line in elastic("segments", "job-a").stdout.splitlines() if "node-a" in line]
    assert "  36 s  infrastructure" in row
    control.cancel("job-a", "enough")
    shown = elastic("show", "job-a").stdout
    assert "held slots for 36 s" in shown
    assert "slot hours 0.04" in shown


def test_cancelling_a_job_that_has_ended_is_refused_and_says_how_it_ended(control: LedgerControl) -> None:
    trained(control)
    refused = elastic("cancel", "job-a").exception
    assert isinstance(refused, Conflict)
    assert "the job 'job-a' has ended, finished at " in str(refused)
    control.submit("job-b", a_spec(), FACTS)
    assert elastic("cancel", "job-b").exit_code == 0
    assert isinstance(elastic("cancel", "job-b").exception, Conflict)


def test_of_many_that_are_cancelled_one_that_has_ended_is_none(control: LedgerControl) -> None:
    trained(control)
    control.submit("job-b", a_spec(), FACTS)
    done = elastic("cancel", "job-a", "job-b", "--yes")
    assert done.exit_code == 1
    assert "it has ended before: finished" in done.stdout
