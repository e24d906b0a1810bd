"""`elastic jobs list | show | segments | explain | audit | revive | rollback | replay`, and those of `submitting`,
`cancelling`, `log_commands`, `estimating` and `steering_commands`.

Talks to the control API with the service secret; only `replay` opens the ledger itself, and `audit` the store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from elastic_core.commands.audit_commands import words_of
from elastic_core.commands.forecast_commands import lines_of
from elastic_core.commands.jobs import log_commands, steering_commands
from elastic_core.commands.jobs.cancelling import cancel
from elastic_core.commands.jobs.ended_jobs import lines_of_ended
from elastic_core.commands.jobs.estimating import estimate
from elastic_core.commands.jobs.group_table import as_plain, jobs_of, print_group
from elastic_core.commands.jobs.one_line import print_status
from elastic_core.commands.jobs.submitting import submit
from elastic_core.commands.opening import As, JobId, Store, open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import Allocation, JobState, to_json
from elastic_core.placement.placed_words import cost_words, figures_words, stages_words
from elastic_core.protocol.exchange_words import exchange_words
from elastic_core.protocol.outlook.at_risk import budget_words, deadline_words
from elastic_core.protocol.outlook.why import why_now
from elastic_core.protocol.process_groups import code_of, fork_of
from elastic_core.protocol.records import JobStatus, SegmentStatus
from elastic_core.protocol.waiting.queued import ASSUMES, waiting_words
from elastic_core.settings import Settings
from elastic_core.spec.inputs.sweeps import swept_values
from elastic_core.spec.inputs.sweeps import words_of as values_words
from elastic_core.text import plural, span

app = typer.Typer(help="Submit, watch and steer training jobs.", no_args_is_help=True)
app.command()(estimate)
app.command()(log_commands.logs)
app.command()(submit)
app.command()(cancel)
for steering in (steering_commands.pause, steering_commands.resume, steering_commands.stop):
    app.command()(steering)
app.command("set")(steering_commands.set_job)
LAST_ACTIONS = 10
_out = Words(highlight=False, soft_wrap=True)


@app.command("list")
def list_jobs(
    active: Annotated[bool, typer.Option(help="only those that are not over")] = False,
    group: Annotated[str, typer.Option(help="those of this sweep, with their values and metric, the best first")] = "",
    as_json: Json = False,
) -> None:
    """All jobs, the oldest first."""
    if group:
        found = jobs_of(open_api(Settings()), group, active)
        print_json(as_plain(found)) if as_json else print_group(found)
        return
    jobs = open_api(Settings()).jobs(active)
    if as_json:
        print_json([to_json(job) for job in jobs])
        return
    rows = (
        (job.job_id, "paused" if job.paused else job.state, _place(job), _progress(job), job.step,
         _places(job.allocation), _batch(job.allocation), _left(job), job.error or why_now(job, time.time()))
        for job in jobs
    )  # fmt: skip
    print_table(("job", "state", "queue", "done", "step", "slots", "batch", "left", "why"), rows)


@app.command()
def show(job: JobId, as_json: Json = False) -> None:
    """One job: progress, what it holds and why, what is expected of it or how that turned out, its results."""
    api = open_api(Settings())
    status = api.job(job)
    if as_json:
        print_json(to_json(status))
        return
    _print_facts(status)
    if status.state is not JobState.ACTIVE:
        for name, value in lines_of_ended(status, api.segments(job), api.checkpoints(job)):
            _out.print(f"{name:10} {value}", markup=False)
    for record in reversed(api.audit_records([job], limit=LAST_ACTIONS)):
        _out.print(f"{'action':10} {_time(record.at)}  {words_of(record)}", markup=False)


@app.command()
def segments(job: JobId, as_json: Json = False) -> None:
    """The stretches of a job's training: what each held, how long it waited, why it ended."""
    statuses = open_api(Settings()).segments(job)
    if as_json:
        print_json([to_json(segment) for segment in statuses])
        return
    rows = (
        (s.index, s.state, s.attempt, _places(s.allocation), _batch(s.allocation), _steps(s), _waited(s), _lasted(s),
         s.end_reason or s.revoke_reason or s.grant_reason or "")
        for s in statuses
    )  # fmt: skip
    print_table(("#", "state", "attempt", "slots", "batch", "steps", "waited", "ran", "why"), rows)


@app.command()
def explain(job: JobId, as_json: Json = False) -> None:
    """Why the job holds, or waits for, what it does: the last decision that spoke of it."""
    why = open_api(Settings()).explain(job)
    if as_json:
        print_json(to_json(why))
        return
    _out.print(f"{why.job_id}: {why.reason}", markup=False)
    if why.decision_id is not None:
        _out.print(
            f"decision {why.decision_id} by {why.policy}, {_time(why.decided_at)}, after: {why.trigger}", markup=False
        )
    for other, reason in why.others.items():
        _out.print(f"  {other}: {reason}", markup=False)


@app.command()
def audit(job: JobId, store: Store = "", as_json: Json = False) -> None:
    """Prove what the job has read: each finished epoch once, the last as far as it goes. Exit code 1: it has not."""
    from elastic_core.state.format.manifest import read_manifest  # loads torch, as the next do
    from elastic_core.state.stores.store_urls import open_store
    from elastic_core.train.data.audit import prove
    from elastic_core.train.data.data_state import DataState

    api, settings = open_api(Settings()), Settings()
    status, place = api.job(job), open_store(store or settings.store_url(), endpoint=settings.s3_endpoint)
    intact = [record for record in api.checkpoints(job) if not record.bad]
    known = DataState.from_scalars(read_manifest(place, intact[-1].uri).scalars) if intact else None
    fork, plan = fork_of(status.results), known.plan if known is not None else None
    begins_at = fork.samples if fork is not None else 0
    results = prove(api.reads(job), status.facts.dataset_samples, place, plan, begins_at)
    if as_json:
        print_json([to_json(result) for result in results])
    else:
        if fork is not None:
            _out.print(f"from {fork.words} on; what is before that, `elastic jobs audit {fork.job_id}`", markup=False)
        rows = (
            (r.epoch, f"{r.count} of {r.expected}" + (f" after {r.before}" if r.before else ""),
             {True: "yes", False: "NO", None: "in part"}[r.proven],
             "index by index" if r.every_index else "fingerprint", r.problem)
            for r in results
        )  # fmt: skip
        print_table(("epoch", "read", "proven", "by", "problem"), rows)
    if any(result.proven is False for result in results):
        raise typer.Exit(1)


@app.command()
def revive(job: JobId, user: As = "", as_json: Json = False) -> None:
    """Open a failed or cancelled job again, from its last good checkpoint."""
    print_status(open_api(Settings(), user).revive(job), as_json)


@app.command()
def rollback(
    job: JobId,
    checkpoint: Annotated[int, typer.Argument(help="id, see `elastic checkpoint ls JOB`")],
    user: As = "",
    as_json: Json = False,
) -> None:
    """Go on from an earlier checkpoint, in a new lineage."""
    print_status(open_api(Settings(), user).rollback(job, checkpoint), as_json)


@app.command()
def replay(decision: int, as_json: Json = False) -> None:
    """Make a recorded decision again from its inputs. Exit code 1: the policy decides otherwise today."""
    from elastic_core.control.plane import open_control

    control = open_control(Settings())
    try:
        replayed = control.replay(decision)
    finally:
        control.close()
    if as_json:
        print_json({"decision_id": decision, "same": replayed.same, "trigger": replayed.trigger,
                     "recorded": to_json(replayed.recorded), "again": to_json(replayed.again)})  # fmt: skip
    else:
        _out.print(
            f"decision {decision} by {replayed.recorded.policy}, version {replayed.snapshot.version}, "
            f"after: {replayed.trigger}",
            markup=False,
        )
        rows = (
            (
                job_id,
                _counts(target.counts),
                target.global_batch,
                _compare_targets(replayed.again.targets.get(job_id), target),
                target.reason,
            )
            for job_id, target in sorted(replayed.recorded.targets.items())
        )
        print_table(("job", "slots", "batch", "today", "reason"), rows)
    if not replayed.same:
        raise typer.Exit(1)


def _print_facts(job: JobStatus) -> None:
    work = f"{job.done_samples} of {job.total_samples} samples{_reference(job)}"
    facts: Mapping[str, Any] = {
        "job": job.job_id,
        "state": job.state + (f": {job.error}" if job.error else ""),
        "done": f"{work} ({_progress(job)}), step {job.step}",
        "read": _read(job),
        "left": (_left(job) or "unknown") if job.state is JobState.ACTIVE else "",
        "segment": f"{job.segment_id} ({job.segment_state}), lineage {job.lineage}",
        "holds": f"{_places(job.allocation) or 'no slots'}, global batch {_batch(job.allocation) or '-'}",
        "layout": str(job.allocation.layout) if job.allocation is not None and not job.allocation.stages else "",
        "stages": stages_words(job),
        "placement": f"{job.spec.placement}: {figures_words(job)}" if figures_words(job) else "",
        "exchange": exchange_words(job),
        "waits": _waits(job),
        "why": job.target_reason,
        "set": job.changes.words,
        "group": _group(job),
        "code": code_of(job.results).words,
        "from": fork.words if (fork := fork_of(job.results)) is not None else "",
        "spent": cost_words(job),
        "budget": budget_words(job, time.time()),
        "deadline": deadline_words(job, time.time()),
        "submitted": _time(job.submitted_at) + (f" by {job.submitted_by}" if job.submitted_by else ""),
        "finished": _time(job.finished_at),
        "results": json.dumps(job.results) if job.results else "",
    }
    for name, value in facts.items():
        if value:
            _out.print(f"{name:10} {value}", markup=False)
    for name, value in lines_of(job, time.time()):
        _out.print(f"{name:10} {value}", markup=False)
    for note in job.notes:
        _out.print(f"{'note':10} {note}", markup=False)


def _place(job: JobStatus) -> str:
    """E.g. "3 of 12", of a job that waits for slots."""
    return "" if job.in_queue is None else f"{job.in_queue.place} of {job.in_queue.length}"


def _waits(job: JobStatus) -> str:
    return "" if job.in_queue is None else f"{_place(job)}: {waiting_words(job.in_queue, time.time())}; {ASSUMES}"


def _group(job: JobStatus) -> str:
    return f"{job.spec.group.id}: {values_words(swept_values(job.spec))}" if job.spec.group is not None else ""


def _progress(job: JobStatus) -> str:
    return f"{min(1.0, job.done_samples / job.total_samples):.0%}"


def _reference(job: JobStatus) -> str:
    work, batch = job.spec.work, job.spec.batch
    return f" at batch {batch.base or batch.min}" if work.scale_invariant else ""


def _read(job: JobStatus) -> str:
    """Of a job measured by progress: passes over the data set, as declared, so far, and as predicted."""
    if job.predicted_samples is None:
        return ""
    size, cap = job.facts.dataset_samples, job.spec.work.max_samples
    passes = [f"{samples / size:.1f}" for samples in (job.total_samples, job.samples_read, job.predicted_samples)]
    gain = f", gain {job.gain:.2f}" if job.gain is not None else ""
    most = f", at most {cap} samples" if cap is not None else ""
    return (
        f"{plural(job.samples_read, 'sample')} in {passes[1]} passes; {passes[2]} are predicted for the "
        f"{passes[0]} at the base batch{gain}{most}"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "none"


def _compare_targets(today: Any, recorded: Any) -> str:
    if today is None:
        return "not in the plan"
    if today == recorded:
        return "the same"
    return f"{_counts(today.counts)}, batch {today.global_batch}, {today.layout}"


def _places(allocation: Allocation | None) -> str:
    """E.g. "2: node-a:0,1"."""
    if allocation is None:
        return ""
    nodes: dict[str, list[str]] = {}
    for slot in allocation.slots:
        nodes.setdefault(slot.node, []).append(str(slot.index))
    return f"{allocation.num_slots}: " + " ".join(f"{node}:{','.join(indices)}" for node, indices in nodes.items())


def _batch(allocation: Allocation | None) -> str:
    return str(allocation.global_batch) if allocation is not None else ""


def _steps(segment: SegmentStatus) -> str:
    return f"{segment.start_step}-{'' if segment.end_step is None else segment.end_step}"


def _waited(segment: SegmentStatus) -> str:
    if segment.asked_at is None:
        return ""
    granted = segment.granted_at  # before it asked: that of the attempt that was lost
    until = granted if granted is not None and granted >= segment.asked_at else time.time()
    return span(until - segment.asked_at)


def _lasted(segment: SegmentStatus) -> str:
    until = time.time() if segment.lease_live else segment.released_at
    return "" if segment.granted_at is None or until is None else span(until - segment.granted_at)


def _left(job: JobStatus) -> str:
    return span(job.seconds_left) if job.seconds_left is not None else ""


def _time(at: float | None) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""
