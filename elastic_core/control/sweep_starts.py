"""All members of a sweep are seen to be right before the first is started; then they are started, some at a time.

There is no transaction over Airflow's runs. What no check can foresee (another job takes the last place of a queue, the
task's own code refuses a member) leaves the others as they are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.teams import audit_trail
from elastic_core.control.teams.job_quotas import check_room
from elastic_core.control.teams.permissions import Action
from elastic_core.control.transitions import start_job
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Caller, name_of
from elastic_core.protocol.job_runs import JobRuns
from elastic_core.protocol.records import Submission, SweepMember, SweepStarted
from elastic_core.spec.inputs.sweeps import Member, words_of

START_SECONDS = 12.0  # of one request, checks included, so that its answer comes within a client's time-out


def deadline() -> float:
    """Of a request that begins now, by the monotonic clock."""
    return time.monotonic() + START_SECONDS


def check_all(
    ledger: Ledger, runs: JobRuns, members: Sequence[Member], warm_start: str | None, caller: Caller | None
) -> frozenset[str]:
    """The ids of those that are started already. Raises for the first that could not be, saying which it is.

    Who asks needs the right to submit each, and the queues need room for all that the ledger does not know yet.
    """
    there = set()
    for member in members:
        about = partial(audit_trail.of_spec, job_id=member.job_id, spec=member.spec)
        try:
            with audit_trail.asked(ledger, caller, Action.SUBMIT, about, only_check=True):
                known = start_job.check_start(ledger, runs, member.job_id, member.spec, warm_start, caller)
        except UserError as error:
            words = f"member {member.job_id} of the sweep ({words_of(member.values)}) is refused, so that none is"
            raise type(error)(f"{words} started: {error}") from error
        there |= {member.job_id} if known else set()
    ledger.read(lambda tx: _check_rooms(tx, members, name_of(caller)))
    return frozenset(there)


def _check_rooms(tx: Tx, members: Sequence[Member], user: str | None) -> None:
    known = {row.id for row in tx.among(JobRow.id, [member.job_id for member in members])}
    for queue, more in Counter(member.spec.queue for member in members if member.job_id not in known).items():
        check_room(tx, queue, user, more)


def start_all(
    group: str, members: Sequence[Member], there: frozenset[str], until: float, start: Callable[[Member], Submission]
) -> SweepStarted:
    """In order, until then by the monotonic clock, and at least one that is not there yet: who asks again comes to an
    end."""
    begun = 0
    told: list[SweepMember] = []
    for member in members:
        is_new = member.job_id not in there
        if is_new and begun and time.monotonic() >= until:
            told.append(SweepMember(job_id=member.job_id, values=member.values))
            continue
        told.append(SweepMember(job_id=member.job_id, values=member.values, submission=start(member)))
        begun += is_new
    return SweepStarted(group=group, members=tuple(told))
