"""Every action of a user, a DAG or the operator: allowed by the one rule, done and recorded in one transaction.

What is refused changes nothing and is recorded as well, in a transaction of its own. What the platform does by itself
(`caller` None) asks nobody and leaves no record here: the ledger's events tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlalchemy import select

from elastic_core.control.ledger import reads
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.nodes import queue_spec
from elastic_core.control.ledger.tables import AuditRow, JobRow
from elastic_core.control.teams.permissions import About, Action, check
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.records import AuditRecord
from elastic_core.spec import JobSpec
from elastic_core.spec.pool_check import NO_SHARE

T = TypeVar("T")
MOST_DETAIL = 2000  # characters
MOST_RECORDS = 10_000


def act(
    ledger: Ledger, caller: Caller | None, action: Action, about: Callable[[Tx], About], detail: str,
    work: Callable[[Tx], T], *, once: bool = False,
) -> T:  # fmt: skip
    """`Ledger.change` on behalf of a caller. Raises `Forbidden`, and whatever `work` raises.

    Work that returns False has changed nothing and leaves no record: whoever asks for what is so already, however
    often, pushes nobody's deeds off it. `once`: not recorded again where the caller is on record with it.
    """
    if caller is None:
        return ledger.change(work)
    seen: list[About] = []

    def allowed(tx: Tx) -> T:
        seen[:] = [about(tx)]
        check(caller, action, seen[0])
        result = work(tx)
        if once:
            _record_once(tx, caller, action, seen[0])
        elif result is not False:
            _record(tx, caller, action, seen[0], detail, done=True)
        return result

    try:
        return ledger.change(allowed)
    except UserError as refusal:
        _record_refusal(ledger, caller, action, seen, refusal)
        raise


@dataclass(slots=True)
class Asked:
    changed: bool = True  # whoever finds that it was so already says so


@contextmanager
def asked(
    ledger: Ledger, caller: Caller | None, action: Action, about: Callable[[Tx], About], *, only_check: bool = False,
    detail: str | None = None,
) -> Iterator[Asked]:  # fmt: skip
    """The same, once, for work that is no single transaction of the ledger's. `only_check`: nothing is done yet.

    `detail`: what asks with one may be done again, and is recorded each time that it changes something.
    """
    outcome = Asked()
    if caller is None:
        yield outcome
        return
    seen: list[About] = []
    try:
        seen[:] = [ledger.read(about)]
        check(caller, action, seen[0])
        yield outcome
    except UserError as refusal:
        _record_refusal(ledger, caller, action, seen, refusal)
        raise
    if detail is not None:
        if outcome.changed:
            ledger.write(lambda tx: _record(tx, caller, action, seen[0], detail, done=True))
    elif not only_check:
        ledger.write(lambda tx: _record_once(tx, caller, action, seen[0]))


def act_too(tx: Tx, caller: Caller | None, action: Action, about: About, detail: str | None = None) -> None:
    """What an action brings with it, in its transaction: allowed by the same rule, and recorded.

    `detail`: recorded each time, with it; otherwise once.
    """
    if caller is None:
        return
    check(caller, action, about)
    if detail is None:
        _record_once(tx, caller, action, about)
    else:
        _record(tx, caller, action, about, detail, done=True)


def of_job(tx: Tx, job_id: str) -> About:
    job = tx.job(job_id)
    queue = queue_spec(tx, job.spec.get("queue", NO_SHARE))
    return About(subject=f"job {job_id!r}", job_id=job_id, queue=queue, submitted_by=job.submitted_by)


def of_segment(tx: Tx, segment_id: str) -> About:
    return replace(of_job(tx, tx.segment(segment_id).job_id), subject=f"segment {segment_id!r}")


def of_version(tx: Tx, model: str, version: str) -> About:
    """A registered version is the job's that made it, where one of the ledger did."""
    subject = f"version {version} of model {model!r}"
    makers = tx.session.scalars(reads.who_registered(model, version)).all()
    return replace(of_job(tx, makers[-1].id), subject=subject, registered=True) if makers else About(subject=subject)


def of_spec(tx: Tx, job_id: str, spec: JobSpec) -> About:
    queue = queue_spec(tx, spec.queue)
    return About(subject=f"job {job_id!r}", job_id=job_id, queue=queue, priority=spec.priority)


def records(
    tx: Tx, *, job_ids: Sequence[str] | None, actor: str | None, limit: int, before: int | None
) -> list[AuditRecord]:
    """The last ones, newest first, or of those with a number smaller than `before`.

    Raises `UserError` for a limit that is none.
    """
    if not 1 <= limit <= MOST_RECORDS:
        raise UserError(f"limit is {limit}; it takes 1 to {MOST_RECORDS} records")
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if job_ids is not None:
        query = query.where(AuditRow.job_id.in_(job_ids))
    if actor is not None:
        query = query.where(AuditRow.actor == actor)
    if before is not None:
        query = query.where(AuditRow.id < before)
    return [
        AuditRecord(
            record_id=row.id, at=row.at, actor=row.actor, way=row.way, action=row.action, job_id=row.job_id,
            subject=row.subject, queue=row.queue, done=row.done, detail=row.detail,
        )
        for row in tx.session.scalars(query)
    ]  # fmt: skip


def known(tx: Tx, job_id: str) -> bool:
    return tx.row(JobRow, job_id) is not None


def _record(tx: Tx, caller: Caller, action: Action, about: About, detail: str, *, done: bool) -> None:
    tx.session.add(
        AuditRow(
            at=tx.now, actor=caller.name, way=caller.way, action=action, job_id=about.job_id, subject=about.subject,
            queue=about.queue.name if about.queue is not None else None, done=done, detail=detail[:MOST_DETAIL],
        )
    )  # fmt: skip


def _record_refusal(ledger: Ledger, caller: Caller, action: Action, seen: Sequence[About], refusal: UserError) -> None:
    about = seen[0] if seen else About(subject="")  # what it was to be done to is not there
    ledger.write(lambda tx: _record(tx, caller, action, about, str(refusal), done=False))


def _record_once(tx: Tx, caller: Caller, action: Action, about: About) -> None:
    query = select(AuditRow.id).where(
        AuditRow.job_id == about.job_id, AuditRow.actor == caller.name, AuditRow.action == action, AuditRow.done
    )
    if tx.session.scalar(query.limit(1)) is None:
        _record(tx, caller, action, about, "", done=True)
