"""How many jobs may be active at once, where two ask at the same time, and where an ended job is opened again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.spec import QueueSpec
from elastic_core.spec.inputs.sweeps import expand, parse_sweep
from tests.builders import FACTS, FakeJobRuns, a_cluster, a_spec


def with_queue(control: LedgerControl, **rules: Any) -> None:
    control.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="team", **rules),)}))


def submit(control: LedgerControl, job_id: str, user: str = "ann", queue: str = "team") -> None:
    caller = Caller(name=user, way=Way.REST)
    control.acting(caller).submit(job_id, a_spec(queue=queue), FACTS)


def test_a_full_queue_takes_no_more_and_says_how_many_it_may_have(control: LedgerControl) -> None:
    with_queue(control, max_jobs=2)
    submit(control, "a")
    submit(control, "b", user="ben")
    with pytest.raises(UserError) as full:
        submit(control, "c", user="zoe")
    assert str(full.value) == (
        "the queue 'team' has no room for one more job: 2 jobs of it are active, and its max_jobs is 2. Wait until one "
        "has ended, cancel one, or ask the operator for a larger quota"
    )
    submit(control, "d", queue="default")
    submit(control, "a")  # asked again: the same job
    control.cancel("a", "enough")
    submit(control, "c", user="zoe")


def test_a_user_has_a_quota_of_their_own(control: LedgerControl) -> None:
    with_queue(control, max_jobs_per_user=1)
    submit(control, "a")
    submit(control, "b", user="ben")
    with pytest.raises(UserError, match=r"1 job of 'ann' in it are active, and its max_jobs_per_user is 1"):
        submit(control, "c")


def test_a_request_is_refused_before_a_run_is_started(control: LedgerControl, runs: FakeJobRuns) -> None:
    with_queue(control, max_jobs=1)
    submit(control, "a")
    with pytest.raises(UserError, match="no room for one more job"):
        control.acting(Caller(name="ben", way=Way.REST)).start_job("b", a_spec(queue="team"))
    assert runs.runs == {}
    assert [record.done for record in control.audit_records(actor="ben")] == [False]


def test_a_sweep_needs_a_place_for_each_of_its_members(control: LedgerControl, runs: FakeJobRuns) -> None:
    with_queue(control, max_jobs=3, max_jobs_per_user=2)
    submit(control, "a", user="ben")
    spec = a_spec(queue="team")
    for user, seeds, says in (
        ("zoe", [1, 2, 3], "no room for 3 more jobs: 1 job of it are active, and its max_jobs is 3. Wait until some"),
        ("ben", [1, 2], "no room for 2 more jobs: 1 job of 'ben' in it are active, and its max_jobs_per_user is 2"),
    ):
        with pytest.raises(UserError, match=says):
            control.acting(Caller(name=user, way=Way.REST)).start_sweep("g", parse_sweep(spec, {"seed": seeds}))
    assert runs.runs == {}
    zoe = control.acting(Caller(name="zoe", way=Way.REST))
    assert zoe.start_sweep("g", parse_sweep(spec, {"seed": [1, 2]})).left == 0
    zoe.submit("g-000", expand("g", parse_sweep(spec, {"seed": [1, 2]}))[0].spec, FACTS)
    assert zoe.start_sweep("g", parse_sweep(spec, {"seed": [1, 2]})).left == 0, "its own jobs are not in its way"


def test_two_submissions_at_once_do_not_both_take_the_last_place(control: LedgerControl) -> None:
    with_queue(control, max_jobs=3)

    def tried(number: int) -> bool:
        try:
            submit(control, f"job-{number}")
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(tried, range(8))) == 3
    assert len(control.jobs(active_only=True)) == 3


def test_a_job_that_is_opened_again_needs_a_place(control: LedgerControl) -> None:
    with_queue(control, max_jobs=1)
    submit(control, "a")
    control.cancel("a", "enough")
    submit(control, "b")
    with pytest.raises(UserError, match="no room for one more job"):
        control.revive("a")
    assert control.job("a").state is JobState.CANCELLED
    control.cancel("b", "enough")
    assert control.revive("a").state is JobState.ACTIVE
