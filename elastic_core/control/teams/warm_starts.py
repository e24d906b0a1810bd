"""From whose checkpoints a new job may take weights: the rule of queues, asked of the job that made the checkpoint.

Whoever may act on that job may, as for a fork. A version that was registered is its queue's: its members may start from
it whoever of them trained it, so that a team's pipeline goes on from the champion. What no job of the ledger made is
vouched for by the operator alone.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.teams import audit_trail
from elastic_core.control.teams.permissions import About, Action, check
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller
from elastic_core.state.stores.paths import CheckpointPath

_FORM = "JOB/lineage-0/step-0000000007-epoch-3-abc"


def check_warm_start(tx: Tx, caller: Caller | None, uri: str | None) -> None:
    """Raises `UserError` for what is no checkpoint's address, `Forbidden` for who may not start from it.

    `caller`: None is the platform itself, which carries out what was asked for before.
    """
    if uri is None:
        return
    about = _about(tx, uri)
    if caller is not None:
        check(caller, Action.WARM_START, about)


def record_warm_start(tx: Tx, caller: Caller | None, uri: str | None, job_id: str) -> None:
    """With the job that made the checkpoint, in the transaction that makes the new one, `job_id`."""
    if uri is not None:
        audit_trail.act_too(tx, caller, Action.WARM_START, _about(tx, uri), f"job {job_id}")


def _about(tx: Tx, uri: str) -> About:
    path = CheckpointPath.of_job(uri)
    if path is None:
        raise UserError(
            f"warm_start is {uri[:200]!r}; it takes the address of a checkpoint, as {_FORM}: `elastic checkpoint ls "
            "JOB` shows those of a job"
        )
    job = tx.row(JobRow, path.job_id)
    if job is None:
        return About(subject=f"checkpoint {uri[:200]!r}, which no job of the ledger made")
    results = job.results
    registered = uri in (results.get("registered_checkpoint"), *results.get("registered_checkpoints", ()))
    return replace(audit_trail.of_job(tx, job.id), subject=f"checkpoint {uri!r}", registered=registered)
