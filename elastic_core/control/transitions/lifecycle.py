"""What users and operators do to a job: submit, fork, ask, revoke, cancel, fail, revive, roll back. Each idempotent.

What users do to a job says whether it changed anything, since they are on record for that alone. All of it runs under
the scheduling lock (`Ledger.change`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import add_note, emit
from elastic_core.control.ledger.tables import CheckpointRow, JobRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import last_segments, spec_of
from elastic_core.control.teams.job_quotas import check_room
from elastic_core.control.teams.warm_starts import check_warm_start, record_warm_start
from elastic_core.control.transitions.endings import emit_segment_ended, end_job
from elastic_core.control.transitions.pool_changes import check_feasible, check_placement
from elastic_core.control.transitions.removable import is_given_up
from elastic_core.domain import SEGMENT_MARK, JobState, PlacedLayer, SegmentState, from_json, segment_id_of, to_json
from elastic_core.errors import Conflict, NotFound, UserError
from elastic_core.placement.placed_models import declared_by
from elastic_core.protocol.callers import Caller, name_of
from elastic_core.protocol.encoding import encode
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import CODE, EVALUATION, FORK, ForkPoint, code_of, fork_of
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import JobSpec, entry_points
from elastic_core.spec.admitted_layouts import check_layouts
from elastic_core.spec.job import total_samples
from elastic_core.spec.job_forks import forked_spec
from elastic_core.state.stores.paths import RESERVED

MOST_RESULT_BYTES = 4 * 2**20  # recorded at once: of ten thousand registered checkpoints, and more
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # each is one that Airflow takes for a run


def check_request(
    tx: Tx, job_id: str, spec: JobSpec, warm_start: str | None, caller: Caller | None = None,
    origin: ForkPoint | None = None,
) -> bool:  # fmt: skip
    """Whether the ledger has this very job. Raises `UserError` for what is wrong whatever the task's code says.

    `caller`: whose rights and quotas count. `origin`: of a fork.
    """
    known = tx.session.get(JobRow, job_id)
    if known is not None:
        _check_same(known, spec, warm_start, origin)
        return True
    check_job_id(job_id)
    check_warm_start(tx, caller, warm_start)
    entry_points.check(spec.entry_point, tx.settings.tasks)
    check_feasible(tx, spec)
    if spec.placement_profile is not None and spec.placement_profile.layers:  # else they are known when they were timed
        check_placement(tx, spec, ())
    check_room(tx, spec.queue, name_of(caller))
    return False


def submit(
    tx: Tx, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None, caller: Caller | None = None
) -> None:
    if check_request(tx, job_id, spec, warm_start, caller):
        return
    if facts.dataset_samples < 1:
        raise UserError(f"the data set of {job_id!r} has {facts.dataset_samples} samples; at least one is needed")
    check_layouts(spec, facts.layouts)
    if spec.places_layers:
        check_placement(tx, spec, _declared(spec, facts))
    record_warm_start(tx, caller, warm_start, job_id)
    _new_job(tx, job_id, spec, facts, name_of(caller), {}, warm_start=warm_start)


def spec_of_fork(tx: Tx, checkpoint_id: int, changes: Mapping[str, Any]) -> JobSpec:
    """The parent's as it was submitted, with changes. Raises `NotFound`, and `UserError` for what may not change."""
    return forked_spec(spec_of(tx.job(fork_source(tx, checkpoint_id).job_id)), changes)


def fork(tx: Tx, job_id: str, checkpoint_id: int, spec: JobSpec, code_now: bool, caller: Caller | None) -> bool:
    """A new job whose head is a checkpoint of another: its first segment restores it as any restores its own."""
    point = fork_source(tx, checkpoint_id)
    parent = tx.job(point.job_id)
    origin = ForkPoint(
        job_id=parent.id, checkpoint_id=point.id, step=point.step, samples=point.samples, uri=point.uri,
        manifest_sha256=point.manifest_sha256,
    )  # fmt: skip
    facts = from_json(JobFacts, parent.facts)
    if check_request(tx, job_id, spec, None, caller, origin):
        return False
    _check_usable(tx, point)
    total = total_samples(spec, facts.dataset_samples)
    _check_work_is_left(origin, point.samples if point.progress is None else point.progress, total)
    check_layouts(spec, facts.layouts)
    if spec.places_layers:
        check_placement(tx, spec, _declared(spec, facts))
    code = {CODE: parent.results[CODE]} if code_of(parent.results).sha256 and not code_now else {}
    same_exchange = to_json(spec.comm) == to_json(spec_of(parent).comm)
    job = _new_job(tx, job_id, spec, facts, name_of(caller), {**code, FORK: to_json(origin)}, head_id=point.id)
    job.exchange_fallback = parent.exchange_fallback if same_exchange else None
    add_note(tx, job, f"forked from {origin.words}")
    return True


def fork_source(tx: Tx, checkpoint_id: int) -> CheckpointRow:
    """Raises `NotFound`."""
    point = tx.session.get(CheckpointRow, checkpoint_id)
    if point is None:
        raise NotFound(f"no job has a checkpoint {checkpoint_id}; `elastic checkpoint ls JOB` shows those of one")
    return point


def _check_work_is_left(origin: ForkPoint, done: float, total: int) -> None:
    if done >= total:
        raise UserError(
            f"{origin.words} has {done:g} of {total} samples of work done, counted from the beginning of that job: "
            "nothing is left for a fork. Give it more: work.epochs or work.samples."
        )


def _new_job(
    tx: Tx, job_id: str, spec: JobSpec, facts: JobFacts, user: str | None, results: dict[str, Any], *,
    warm_start: str | None = None, head_id: int | None = None,
) -> JobRow:  # fmt: skip
    job = JobRow(
        id=job_id,
        spec=to_json(spec),
        facts=to_json(facts),
        state=JobState.ACTIVE,
        total_samples=total_samples(spec, facts.dataset_samples),
        submitted_at=tx.now,
        warm_start=warm_start,
        submitted_by=user,
        notes=[],
        results=results,
        lineage=0,
        head_id=head_id,
    )
    tx.session.add(job)
    tx.session.flush()
    add_segment(tx, job, follows=None)
    payload = {"spec": job.spec, "facts": job.facts, "total_samples": job.total_samples}
    emit(tx, EventKind.JOB_SUBMITTED, job_id, payload)
    return job


def _declared(spec: JobSpec, facts: JobFacts) -> tuple[PlacedLayer, ...]:
    if not facts.layers:
        raise UserError(
            f"placement: {spec.entry_point} declares no layers that could be placed. Give its task a method "
            "layers(self, model) that returns the model's submodules in the order of its forward pass, or set "
            "placement: none."
        )
    return declared_by(facts)


def check_job_id(job_id: str) -> None:
    if not JOB_ID.fullmatch(job_id) or ".." in job_id or SEGMENT_MARK in job_id:
        raise UserError(
            f"the job id {job_id!r} cannot be used: it names folders and Airflow runs. Allowed are 1 to 200 characters "
            f"of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit, without '..' and {SEGMENT_MARK!r}."
        )
    if job_id in RESERVED:
        raise UserError(
            f"the job id {job_id!r} cannot be used: the folder {job_id}/ of the checkpoint store is that of all jobs. "
            f"Choose another one; reserved are {', '.join(sorted(RESERVED))}."
        )


def _check_same(job: JobRow, spec: JobSpec, warm_start: str | None, origin: ForkPoint | None) -> None:
    wanted, known = to_json(spec), to_json(spec_of(job))  # what an older release stored lacks new keys
    differing = sorted(key for key in wanted if known[key] != wanted[key])
    if job.warm_start != warm_start:
        differing.append("warm_start")
    if fork_of(job.results) != origin:
        differing.append("checkpoint to be forked from")
    if differing:
        raise Conflict(
            f"the job {job.id!r} was submitted before with another {', '.join(differing)}. "
            "Submit under another id, or cancel that job first."
        )


def add_segment(tx: Tx, job: JobRow, follows: str | None, asked_at: float | None = None) -> SegmentRow:
    """The job's next segment. Indices go on over lineages, so every segment's id is used once. `asked_at`: of one that
    goes on in the processes of the one before, and so never waits for slots."""
    last = tx.session.scalar(select(func.max(SegmentRow.index)).where(SegmentRow.job_id == job.id))
    index = 0 if last is None else last + 1
    segment = SegmentRow(
        id=segment_id_of(job.id, index),
        job_id=job.id,
        index=index,
        lineage=job.lineage,
        state=SegmentState.CREATED,
        attempt=0,
        failures=0,
        follows=follows,
        start_step=lineage.head_step(tx, job),
        created_at=tx.now,
        asked_at=asked_at,
        handed_over=False,
    )
    tx.session.add(segment)
    tx.session.flush()
    return segment


def ask(tx: Tx, segment_id: str) -> None:
    """The segment's slots are wanted from now on. One that runs, is committed or has ended is left as it is.

    One that follows another gets what the plan in force has for its job; what is new to the plan is to be decided.
    """
    segment = tx.segment(segment_id)
    if segment.state != SegmentState.CREATED:
        return
    tx.job(segment.job_id, lock=True)
    segment.state = SegmentState.WAITING
    segment.asked_at = tx.now
    if segment.follows is not None and tx.session.get(TargetRow, segment.job_id) is not None:
        tx.carries_out = True
    else:
        tx.trigger = f"{segment.id} asks for slots"


def revoke(tx: Tx, segment_id: str, reason: str) -> bool:
    segment = tx.segment(segment_id)
    holds = segment.state in (SegmentState.GRANTED, SegmentState.RUNNING)
    if not holds or segment.revoked_by == "user":
        return False
    leases.revoke(tx, segment, "user", reason)
    tx.trigger = f"{segment.id} is revoked: {reason}"
    return True


def stop(tx: Tx, job_id: str, state: JobState, reason: str) -> bool:
    """Cancel or fail a job. Its processes are told to stop; its slots are free once they are gone."""
    job = tx.job(job_id, lock=True)
    if job.state != JobState.ACTIVE:
        return False
    end_job(tx, job, state, reason)
    return True


def revive(tx: Tx, job_id: str) -> bool:
    job = tx.job(job_id, lock=True)
    if job.state == JobState.ACTIVE:
        return False
    if job.state == JobState.FINISHED:
        raise Conflict(
            f"the job {job_id!r} is finished: there is nothing left to train. Submit a new job (warm_start takes its "
            "weights), or roll it back to one of its checkpoints."
        )
    _reopen(tx, job, f"revived after: {job.error}")
    return True


def rollback(tx: Tx, job_id: str, checkpoint_id: int) -> bool:
    job = tx.job(job_id, lock=True)
    point = tx.session.get(CheckpointRow, checkpoint_id)
    if point is None or point.job_id != job_id:
        raise UserError(f"checkpoint {checkpoint_id} is none of job {job_id!r}; see `elastic checkpoint ls {job_id}`")
    _check_usable(tx, point)
    if job.head_id == point.id and point.lineage != job.lineage and job.state == JobState.ACTIVE:
        return False  # asked again
    if job.state == JobState.ACTIVE:
        _end_open_segment(tx, job, f"rolled back to step {point.step}")
    job.lineage += 1
    job.head_id = point.id
    # What the model of the end that is given up came to. A model that was registered stays so.
    job.results = {name: value for name, value in job.results.items() if name != EVALUATION}
    tx.session.flush()
    _reopen(tx, job, f"rolled back to checkpoint {point.id} (step {point.step})")
    tx.trigger = f"{job.id} is rolled back"
    return True


def _check_usable(tx: Tx, point: CheckpointRow) -> None:
    if not lineage.usable(point):
        why = f"was found corrupt: {point.bad_reason}" if point.bad else "has been swept"
        raise UserError(f"checkpoint {point.id} (step {point.step}) {why}. Name another one.")
    if is_given_up(tx, point):
        raise UserError(
            f"checkpoint {point.id} (step {point.step}) is beyond what job {point.job_id!r} keeps, and is being "
            f"deleted. Name another one: `elastic checkpoint ls {point.job_id}`."
        )


def _end_open_segment(tx: Tx, job: JobRow, reason: str) -> None:
    segment = last_segments(tx, [job.id])[job.id]
    for lease in leases.live_of_job(tx, job.id):
        leases.fence(tx, lease, reason)
    segment.state = SegmentState.CANCELLED
    segment.ended_at = tx.now
    segment.end_reason = f"cancelled: {reason}"
    emit_segment_ended(tx, segment)
    tx.session.flush()


def _reopen(tx: Tx, job: JobRow, note: str) -> None:
    if job.state != JobState.ACTIVE:
        check_room(tx, spec_of(job).queue, job.submitted_by)
        if CODE in job.results:  # whatever ended it may be mended by now
            job.results = {name: value for name, value in job.results.items() if name != CODE}
            note += "; it runs its code as that is now"
    job.state = JobState.ACTIVE
    job.error = job.finished_at = job.hindsight = job.paused = None
    add_note(tx, job, note)
    add_segment(tx, job, follows=None)


def record_results(tx: Tx, job_id: str, results: Mapping[str, Any]) -> None:
    """Raises `UserError` for more than any job needs: all of it is read and told of wherever the job is."""
    size = len(encode(results))
    if size > MOST_RESULT_BYTES:
        raise UserError(
            f"the results {', '.join(sorted(results))} of job {job_id!r} have {size} bytes as JSON; allowed are "
            f"{MOST_RESULT_BYTES} at once: record fewer, or shorter ones"
        )
    job = tx.job(job_id, lock=True)
    merged = {**job.results, **results}
    if merged != job.results:
        job.results = merged
        emit(tx, EventKind.RESULTS, job.id, {"results": merged, "lineage": job.lineage})
