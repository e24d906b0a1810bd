"""A request becomes a run, once, and the run a job: in process and over HTTP; Airflow's runs are a double."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, InfrastructureError, NotFound, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.records import SubmissionState
from elastic_core.spec import parse_job_spec
from elastic_core.spec.inputs.sweeps import parse_sweep
from tests.builders import FACTS, FakeClock, FakeJobRuns, a_commit, a_control, a_spec
from tests.control.conftest import Plane

START = "job-z/lineage-0/step-0000000001-epoch-1-z"
SWEEP = parse_sweep(a_spec(), {"seed": [1, 2, 3]})


def test_a_sweep_starts_a_run_for_each_member_and_asked_again_it_is_the_same(plane: Plane, runs: FakeJobRuns) -> None:
    started = plane.service.start_sweep("g", SWEEP, START)
    assert (list(runs.runs), started.left) == (["g-000", "g-001", "g-002"], 0)
    assert [parse_job_spec(run.conf["spec"]).seed for run in runs.runs.values()] == [1, 2, 3]
    assert {run.conf["warm_start"] for run in runs.runs.values()} == {START}
    assert plane.service.start_sweep("g", SWEEP, START) == started
    assert (len(runs.runs), runs.tried_again) == (3, [])


def test_of_a_sweep_that_takes_long_a_request_starts_some_and_the_next_goes_on(
    plane: Plane, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.control.sweep_starts.START_SECONDS", 0.0)
    assert [plane.service.start_sweep("g", SWEEP).left for _ in range(3)] == [2, 1, 0]
    assert len(runs.runs) == 3


def test_a_member_that_was_something_else_before_keeps_all_others_from_starting(
    plane: Plane, runs: FakeJobRuns
) -> None:
    plane.service.start_job("g-002", a_spec())
    with pytest.raises(Conflict, match=r"member g-002 of the sweep \(seed 3\) is refused.*by another request"):
        plane.service.start_sweep("g", SWEEP)
    with pytest.raises(UserError, match=r"member h-000 of the sweep \(entry_point os:system\) is refused.*patterns"):
        plane.service.start_sweep("h", parse_sweep(a_spec(), {"entry_point": ["os:system", "examples.digits:Digits"]}))
    assert list(runs.runs) == ["g-002"]


def test_a_sweep_that_was_refused_in_part_is_tried_anew_where_it_was(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.start_sweep("g", SWEEP)
    runs.end("g-001", succeeded=False, refusal="params: unknown")
    again = plane.service.start_sweep("g", SWEEP)
    assert runs.tried_again == ["g-001"]
    assert {one.submission.state for one in again.members if one.submission} == {SubmissionState.STARTING}


def test_a_request_starts_a_run_under_the_jobs_id_with_all_that_the_run_needs(plane: Plane, runs: FakeJobRuns) -> None:
    submission = plane.service.start_job("job-a", a_spec(), START)
    assert (submission.state, submission.run_id) == (SubmissionState.STARTING, "job-a")
    conf = runs.runs["job-a"].conf
    assert parse_job_spec(conf["spec"]) == a_spec()
    assert (conf["job_id"], conf["warm_start"]) == ("job-a", START)
    assert plane.service.jobs() == [], "it is for the run to record the job, once its code has been asked"


def test_no_job_has_the_id_of_a_folder_that_is_of_all_jobs(plane: Plane, runs: FakeJobRuns) -> None:
    """Else what it may write in the store would be everybody's pinned code."""
    for submit in (
        lambda: plane.service.start_job("code", a_spec()),
        lambda: plane.service.check_submission("code", a_spec()),
        lambda: plane.service.submit("code", a_spec(), FACTS),
    ):
        with pytest.raises(UserError, match=r"job id 'code' cannot be used.*store.*of all jobs.*reserved are code"):
            submit()
    assert (list(runs.runs), plane.service.jobs()) == ([], [])


def test_a_job_that_has_such_an_id_from_before_goes_on(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr("elastic_core.control.transitions.lifecycle.RESERVED", frozenset())
        life = plane.life("code")
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 5))
    assert plane.service.submit("code", a_spec(), FACTS).step == 5


def test_asked_again_it_is_one_run(plane: Plane, runs: FakeJobRuns) -> None:
    assert plane.service.start_job("job-a", a_spec()) == plane.service.start_job("job-a", a_spec())
    assert (list(runs.runs), runs.tried_again) == (["job-a"], [])


def test_another_request_under_the_same_id_is_a_conflict(plane: Plane) -> None:
    plane.service.start_job("job-a", a_spec())
    with pytest.raises(Conflict, match=r"was started before by another request. Submit under another id"):
        plane.service.start_job("job-a", a_spec(seed=1))
    with pytest.raises(Conflict, match="by another request"):
        plane.service.start_job("job-a", a_spec(), START)


def test_a_run_of_the_form_is_another_request(plane: Plane, runs: FakeJobRuns) -> None:
    runs.start("job-a", {"preset": "digits", "spec": None})
    with pytest.raises(Conflict, match="by another request"):
        plane.service.start_job("job-a", a_spec())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"entry_point": "os:system"}, r"matches none of the operator's patterns \(examples.\*\)"),
        ({"slots": (5, 6)}, "at least 5 slots of one type"),
        ({"queue": "reserch"}, "no queue 'reserch'. It has 'default' only"),
    ],
)
def test_what_is_wrong_without_asking_the_tasks_code_is_said_at_once(
    plane: Plane, runs: FakeJobRuns, change: dict[str, object], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        plane.service.start_job("job-a", a_spec(**change))  # type: ignore[arg-type]
    assert runs.runs == {}


def test_an_id_that_names_a_path_is_refused(plane: Plane, runs: FakeJobRuns) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        plane.service.start_job("../etc", a_spec())
    assert runs.runs == {}


def test_a_refusal_is_told_and_the_same_request_is_tried_again(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.start_job("job-a", a_spec())
    runs.end("job-a", succeeded=False, refusal="params.widht: unknown")
    refused = plane.service.submission("job-a")
    assert (refused.state, refused.error) == (SubmissionState.REFUSED, "params.widht: unknown")
    with pytest.raises(Conflict, match=r"which was refused: params.widht: unknown"):
        plane.service.start_job("job-a", a_spec(seed=1))
    assert plane.service.start_job("job-a", a_spec()).state is SubmissionState.STARTING
    assert runs.tried_again == ["job-a"]


def test_a_run_that_was_refused_is_tried_again_by_who_started_it_and_by_nobody_else(
    control: LedgerControl, runs: FakeJobRuns
) -> None:
    ann, eve = (Caller(name=name, way=Way.REST) for name in ("ann", "eve"))
    sweep = parse_sweep(a_spec(), {"seed": [1]})
    control.acting(ann).start_job("job-a", a_spec())
    control.acting(ann).start_sweep("g", sweep)
    for job_id in ("job-a", "g-000"):
        runs.end(job_id, succeeded=False, refusal="the data is not there")
    with pytest.raises(Conflict, match=r"was started by 'ann', and has ended without a job.*Submit under another id"):
        control.acting(eve).start_job("job-a", a_spec())
    with pytest.raises(Conflict, match="was started by 'ann'"):
        control.acting(eve).start_sweep("g", sweep)
    assert runs.tried_again == []
    assert [record.done for record in control.audit_records(actor="eve")] == [False, False]
    control.acting(ann).start_job("job-a", a_spec())
    control.acting(Caller(name="op@host", way=Way.CLI, unrestricted=True)).start_sweep("g", sweep)
    assert runs.tried_again == ["job-a", "g-000"]


def test_a_run_that_ended_without_recording_the_job_has_refused_it(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.start_job("job-a", a_spec())
    runs.end("job-a", succeeded=False)
    refused = plane.service.submission("job-a")
    assert refused.state is SubmissionState.REFUSED
    assert "ended without having recorded the job: see the log of its task 'submit'" in (refused.error or "")


def test_a_recorded_job_is_accepted_until_it_and_its_run_are_over(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.start_job("job-a", a_spec())
    life = plane.life("job-a")
    assert plane.service.submission("job-a").state is SubmissionState.ACCEPTED
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    assert plane.service.job("job-a").state is JobState.FINISHED
    assert plane.service.submission("job-a").state is SubmissionState.ACCEPTED, "it is being evaluated"
    runs.end("job-a", succeeded=True)
    ended = plane.service.submission("job-a")
    assert (ended.state, ended.run_succeeded) == (SubmissionState.ENDED, True)


def test_a_cancelled_job_has_ended_whatever_its_run_does(plane: Plane) -> None:
    plane.service.start_job("job-a", a_spec())
    plane.life("job-a")
    plane.service.cancel("job-a", "enough")
    assert plane.service.submission("job-a").state is SubmissionState.ENDED


def test_the_run_that_drives_the_job_now_is_the_one_that_counts(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.start_job("job-a", a_spec())
    plane.life("job-a")
    runs.start("job-a__resumed", {})
    plane.service.record_results("job-a", {"airflow": {"dag_id": "elastic_job", "run_id": "job-a__resumed"}})
    assert plane.service.submission("job-a").run_id == "job-a__resumed"


def test_an_active_job_without_a_run_gets_one_that_attaches_to_it(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.submit("job-a", a_spec(), FACTS)
    assert plane.service.start_job("job-a", a_spec()).state is SubmissionState.ACCEPTED
    assert runs.runs["job-a"].conf == {"job_id": "job-a"}


def test_the_open_segment_gets_a_run_and_so_do_those_that_went_by_before_it(plane: Plane, runs: FakeJobRuns) -> None:
    life = plane.life("job-a")
    plane.service.ensure_segment_runs("job-a")
    assert runs.segments_started == ["job-a__seg_0"]
    order = life.start()
    for step in (10, 20):
        answer = plane.trainer(order.token).commit(a_commit(order, step, final=True))
        assert answer.order is not None, "the processes should go straight on"
        order = answer.order
    plane.service.ensure_segment_runs("job-a")
    assert runs.segments_started == ["job-a__seg_0", "job-a__seg_2"]
    plane.service.ensure_segment_runs("job-a", after="job-a__seg_0")
    assert runs.segments_started == ["job-a__seg_0", "job-a__seg_2", "job-a__seg_1"]
    assert plane.service.ensure_segment_runs("job-a", after="job-a__seg_0") == [], "all of them are there"


def test_a_run_that_ended_before_its_segment_works_again_and_one_of_a_segment_that_is_over_does_not(
    plane: Plane, runs: FakeJobRuns
) -> None:
    life = plane.life("job-a")
    runs.segments = {"job-a__seg_0": "failed"}
    plane.service.ensure_segment_runs("job-a")
    assert runs.segments_cleared == ["job-a__seg_0"]
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    runs.segments = {"job-a__seg_0": "failed"}
    assert plane.service.ensure_segment_runs("job-a", after="job-a__seg_0") == []
    assert runs.segments_cleared == ["job-a__seg_0"]


def test_an_ended_job_is_not_started_again(plane: Plane, runs: FakeJobRuns) -> None:
    plane.service.submit("job-a", a_spec(), FACTS)
    plane.service.cancel("job-a", "enough")
    assert plane.service.start_job("job-a", a_spec()).state is SubmissionState.ENDED
    assert runs.runs == {}


def test_what_was_never_asked_for_is_not_found(plane: Plane) -> None:
    with pytest.raises(NotFound, match="no job was submitted as 'nobody'"):
        plane.service.submission("nobody")


def test_a_control_plane_without_airflow_says_so(ledger_url: str, tmp_path: Path, clock: FakeClock) -> None:
    alone = a_control(ledger_url, tmp_path, clock)
    with pytest.raises(InfrastructureError, match="has no way to Airflow"):
        alone.start_job("job-a", a_spec())
    alone.close()


def test_a_start_that_fails_leaves_nothing_and_may_be_asked_for_again(
    plane: Plane, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(job_id: str, conf: object, caller: object) -> bool:
        raise InfrastructureError("Airflow does not know the DAG yet")

    with monkeypatch.context() as patched:
        patched.setattr(runs, "start", away)
        with pytest.raises(InfrastructureError, match="does not know the DAG yet"):
            plane.service.start_job("job-a", a_spec())
    with pytest.raises(NotFound):
        plane.service.submission("job-a")
    assert plane.service.start_job("job-a", a_spec()).state is SubmissionState.STARTING


def test_a_start_that_another_caller_won_is_the_same_request(
    plane: Plane, runs: FakeJobRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = runs.start
    monkeypatch.setattr(runs, "start", lambda *asked: start(*asked) and start(*asked))
    assert plane.service.start_job("job-a", a_spec()).state is SubmissionState.STARTING
