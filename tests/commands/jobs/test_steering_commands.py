"""`elastic jobs pause | resume | stop | set` and `elastic checkpoint now`, against a real control API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from typer.testing import CliRunner, Result

from elastic_core import cli
from elastic_core.commands.opening import complete_job
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, InfrastructureError, UserError
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, Life, a_commit, a_spec

WHOLE = cli.build(["jobs.jobs_commands", "checkpoints.checkpoint_commands"])


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(WHOLE, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def running(control: LedgerControl, job: str = "job-a") -> LaunchOrder:
    control.submit(job, a_spec(), FACTS)
    return Life(control, control.trainer, job).start()


def test_a_job_is_paused_resumed_and_stopped_by_name(control: LedgerControl) -> None:
    running(control)
    said = elastic("jobs", "pause", "job-a", "--reason", "too dear").stdout
    assert said.startswith("job-a: active, to be paused by ")
    assert said.endswith(": too dear, once it has committed\n")
    assert "paused" in elastic("jobs", "list").stdout
    assert elastic("jobs", "resume", "job-a").exit_code == 0
    assert control.job("job-a").paused is None
    assert json.loads(elastic("jobs", "stop", "job-a", "--json").stdout)["paused"]["ends"] is True


def test_of_many_jobs_each_is_tried_and_the_exit_code_says_whether_all_were_done(control: LedgerControl) -> None:
    running(control, "job-a")
    control.submit("job-b", a_spec(), FACTS)
    control.cancel("job-a", "enough")
    done = elastic("jobs", "pause", "job-a", "job-b", "nobody")
    assert done.exit_code == 1
    assert "the job 'job-a' is cancelled: it cannot be paused" in done.stdout
    assert "there is no job 'nobody'" in done.stdout
    assert control.job("job-b").paused is not None


def test_what_is_set_is_shown(control: LedgerControl) -> None:
    running(control)
    assert elastic("jobs", "set", "job-a", "--priority", 5, "--max-slots", 2).stdout.startswith(
        "job-a: set to priority 5, max slots 2; "
    )
    assert control.job("job-a").changes == JobChanges(priority=5, max_slots=2)
    assert "set        priority 5, max slots 2" in elastic("jobs", "show", "job-a").stdout
    assert isinstance(elastic("jobs", "set", "job-a").exception, UserError)


@contextmanager
def committing(control: LedgerControl, order: LaunchOrder) -> Iterator[None]:
    """A trainer that commits as soon as its segment is asked to end."""
    asked, over = threading.Event(), threading.Event()

    def train() -> None:
        while not over.wait(0.05):
            if control.segment(order.segment_id).revoke_reason and not asked.is_set():
                asked.set()
                control.trainer(order.token).commit(a_commit(order, 3, final=True, size_bytes=2048))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        yield
    finally:
        over.set()
        trainer.join()


def test_a_checkpoint_by_hand_is_waited_for_and_named(control: LedgerControl) -> None:
    order = running(control)
    with committing(control, order):
        said = elastic("checkpoint", "now", "job-a", "--wait", 60).stdout
    (record,) = control.checkpoints("job-a")
    assert said == f"checkpoint {record.checkpoint_id}: step 3, 2.0 KiB, {record.uri}\n"
    assert control.job("job-a").state is JobState.ACTIVE


def test_who_does_not_wait_for_a_checkpoint_is_told_the_segment_and_who_waits_in_vain_where_to_look(
    control: LedgerControl,
) -> None:
    running(control)
    assert "job-a__seg_0: asked for a checkpoint" in elastic("checkpoint", "now", "job-a", "--wait", 0).stdout
    late = elastic("checkpoint", "now", "job-a", "--wait", 0.01).exception
    assert isinstance(late, InfrastructureError)
    assert "has not committed within 0.01 s" in str(late)
    control.cancel("job-a", "enough")
    assert isinstance(elastic("checkpoint", "now", "job-a").exception, Conflict)


def test_ids_are_completed_those_of_active_jobs_first(control: LedgerControl, monkeypatch) -> None:
    for job in ("job-a", "job-b", "other"):
        control.submit(job, a_spec(), FACTS)
    control.cancel("job-a", "enough")
    assert complete_job("jo") == ["job-b", "job-a"]
    monkeypatch.setenv("ELASTIC_CONTROL_URL", "http://127.0.0.1:9")
    assert complete_job("jo") == []
