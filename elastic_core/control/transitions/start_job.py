"""From a request to a job: the one way of submission, for CLI, REST, Python and operator.

A request is checked as far as it can be without the task's code, which never runs here; then the run that takes care
of the job is started under the job's id. That run is the only thing that is written, in one transaction of Airflow's,
so a request without an answer can be sent again and nothing is left half done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.transitions import lifecycle
from elastic_core.crashing import crash_here
from elastic_core.domain import JobState, to_json
from elastic_core.errors import Conflict, NotFound, UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.job_runs import JobRun, JobRuns
from elastic_core.protocol.records import JobStatus, SegmentStatus, Submission, SubmissionState
from elastic_core.spec import JobSpec
from elastic_core.spec.form import JOB_ID, WARM_START, WHOLE_SPEC
from elastic_core.spec.job import parse_job_spec


def start_job(
    ledger: Ledger, runs: JobRuns, job_id: str, spec: JobSpec, warm_start: str | None, caller: Caller | None = None
) -> Submission:
    """`caller`: whose run it is; None for the platform's own."""
    if ledger.read(lambda tx: lifecycle.check_request(tx, job_id, spec, warm_start, caller)):
        start_if_lost(ledger, runs, job_id)
    else:
        conf = {JOB_ID: job_id, WHOLE_SPEC: to_json(spec), WARM_START: warm_start}
        run = runs.look(job_id, {})
        if run is None and not runs.start(job_id, conf, caller):  # another caller was faster
            run = runs.look(job_id, {})
        if run is not None:
            _check_same_request(run, spec, warm_start)
            if run.succeeded is False:
                _check_own(run, caller)
                runs.try_again(job_id)
        crash_here("run.started")
    return submission(ledger, runs, job_id)


def check_start(
    ledger: Ledger, runs: JobRuns, job_id: str, spec: JobSpec, warm_start: str | None, caller: Caller | None = None
) -> bool:
    """Raises what `start_job` would raise, and starts nothing. Whether there is a run or a job under this id already.

    One that was refused is there as well: it would be tried again.
    """
    if ledger.read(lambda tx: lifecycle.check_request(tx, job_id, spec, warm_start, caller)):
        return True
    run = runs.look(job_id, {})
    if run is not None:
        _check_same_request(run, spec, warm_start)
        if run.succeeded is False:
            _check_own(run, caller)
    return run is not None


def submission(ledger: Ledger, runs: JobRuns, job_id: str) -> Submission:
    job = ledger.read(lambda tx: _job(tx, job_id))
    run = runs.look(job_id, job.results if job is not None else {})
    if job is None and run is None:
        raise NotFound(f"no job was submitted as {job_id!r}. `elastic jobs list` shows those that are known.")
    state = _state(job, run)
    return Submission(
        job_id=job_id,
        state=state,
        dag_id=run.dag_id if run is not None else None,
        run_id=run.run_id if run is not None else None,
        run_succeeded=run.succeeded if run is not None else None,
        error=_refusal(run) if state is SubmissionState.REFUSED and run is not None else None,
    )


def segments_to_show(segments: Sequence[SegmentStatus], after: str | None) -> dict[str, bool]:
    """Which of a job's segments need a run, by id, and whether each is over: see `ensure_segment_runs`. `segments`:
    from `after` on, and the last one, which alone may be open.

    Of those that are over only what held slots counts: the others never began.
    """
    from_index = next((segment.index for segment in segments if segment.segment_id == after), len(segments))
    passed = [s for s in segments if s.index > from_index and not s.state.open and s.granted_at is not None]
    return {segment.segment_id: True for segment in passed} | {s.segment_id: False for s in segments if s.state.open}


def _state(job: JobStatus | None, run: JobRun | None) -> SubmissionState:
    works = run is not None and run.succeeded is None
    if job is None:
        refused = run is not None and (run.refusal is not None or not works)
        return SubmissionState.REFUSED if refused else SubmissionState.STARTING
    # Of a failed or cancelled job nothing is evaluated: its run has nothing left to do, whether it knows that or not.
    if job.state is JobState.ACTIVE or (job.state is JobState.FINISHED and works):
        return SubmissionState.ACCEPTED
    return SubmissionState.ENDED


def _refusal(run: JobRun) -> str:
    return run.refusal or (
        f"run {run.run_id} of {run.dag_id} ended without having recorded the job: see the log of its task 'submit'"
    )


def start_if_lost(ledger: Ledger, runs: JobRuns, job_id: str, caller: Caller | None = None) -> None:
    """An active job without a run gets it now rather than by reconciliation."""
    job = ledger.read(lambda tx: _job(tx, job_id))
    if job is not None and job.state is JobState.ACTIVE and runs.look(job_id, job.results) is None:
        runs.start(job_id, {JOB_ID: job_id}, caller)


def _check_same_request(run: JobRun, spec: JobSpec, warm_start: str | None) -> None:
    if run.conf.get(WARM_START) == warm_start and _spec_of(run.conf) == spec:
        return
    raise Conflict(
        f"run {run.run_id!r} of {run.dag_id} was started before by another request"
        + (f", which was refused: {run.refusal}" if run.refusal else "")
        + ". Submit under another id, or delete that run."
    )


def _check_own(run: JobRun, caller: Caller | None) -> None:
    """What a run submits when it is tried again it submits as who started it: raises `Conflict` for anybody else."""
    if caller is None or caller.unrestricted or run.started_by == caller.name:
        return
    whose = f"was started by {run.started_by!r}" if run.started_by else "was started by nobody who is known"
    raise Conflict(
        f"run {run.run_id!r} of {run.dag_id} {whose}, and has ended without a job: who started it may try "
        "it again, and the operator. Submit under another id"
    )


def _spec_of(conf: Mapping[str, Any]) -> JobSpec | None:
    """As it means today: what an older release stored lacks new fields."""
    try:
        return parse_job_spec(conf.get(WHOLE_SPEC))
    except UserError:  # a filled form, or something that was refused for it
        return None


def _job(tx: Tx, job_id: str) -> JobStatus | None:
    row = tx.session.get(JobRow, job_id)
    return None if row is None else views.job_status(tx, row)
