"""Many jobs cancelled by one request: a transaction each, so that one that is refused stops no other."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.teams import audit_trail
from elastic_core.control.teams.permissions import Action
from elastic_core.control.transitions import lifecycle
from elastic_core.domain import JobState
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.records import CancelOutcome
from elastic_core.protocol.service import check_many


def cancel_many(ledger: Ledger, caller: Caller | None, job_ids: Sequence[str], reason: str) -> list[CancelOutcome]:
    """In this order. What is to be decided from it is left to the caller, once."""
    return [_cancel(ledger, caller, job_id, reason) for job_id in check_many(job_ids)]


def _cancel(ledger: Ledger, caller: Caller | None, job_id: str, reason: str) -> CancelOutcome:
    states: list[JobState] = []

    def work(tx: Tx) -> bool:
        changed = lifecycle.stop(tx, job_id, JobState.CANCELLED, reason)
        states.append(JobState(tx.job(job_id).state))
        return changed

    try:
        audit_trail.act(ledger, caller, Action.CANCEL, lambda tx: audit_trail.of_job(tx, job_id), reason, work)
    except UserError as refusal:
        return CancelOutcome(job_id=job_id, state=None, error=str(refusal))
    return CancelOutcome(job_id=job_id, state=states[-1])
