"""What users, and the platform itself, do to a job that there is: the acting half of `plane.LedgerControl`.

Each is one transaction on behalf of the caller, who is asked for the right to it and recorded, and then a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from elastic_core.control.ledger import reads, views
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.scheduling.allocator import Allocator
from elastic_core.control.teams import audit_trail
from elastic_core.control.teams.permissions import About, Action
from elastic_core.control.transitions import lifecycle, steering
from elastic_core.control.transitions.cancel_many import cancel_many
from elastic_core.control.waiting_jobs import WaitingJobs
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.job_runs import Champions
from elastic_core.protocol.records import CancelOutcome, ChampionMoved, JobStatus, SegmentStatus
from elastic_core.spec.bounds import LOWEST_PRIORITY
from elastic_core.spec.job_changes import JobChanges

PLATFORM = "the platform"  # where nobody asks


class JobActions:
    """Whoever inherits it has a ledger, an allocator, a caller (None: the platform itself) and the queue."""

    _ledger: Ledger
    _caller: Caller | None
    _champions: Champions | None  # where models' champions are kept
    allocator: Allocator
    _waiting: WaitingJobs

    def job(self, job_id: str) -> JobStatus:
        return self._ledger.read(lambda tx: self._waiting.placed(tx, [views.job_status(tx, tx.job(job_id))])[0])

    def segment(self, segment_id: str) -> SegmentStatus:
        return self._ledger.read(lambda tx: reads.segment(tx, segment_id))

    def check_attach(self, job_id: str) -> None:
        with audit_trail.asked(self._ledger, self._caller, Action.ATTACH, _about(job_id), only_check=True):
            self._ledger.read(lambda tx: tx.job(job_id))

    def cancel(self, job_id: str, reason: str) -> JobStatus:
        return self._act(
            Action.CANCEL, job_id, reason, lambda tx: lifecycle.stop(tx, job_id, JobState.CANCELLED, reason)
        )

    def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> list[CancelOutcome]:
        outcomes = cancel_many(self._ledger, self._caller, job_ids, reason)
        self.allocator.decide_soon()
        return outcomes

    def fail(self, job_id: str, error: str) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.stop(tx, job_id, JobState.FAILED, error))

    def revive(self, job_id: str) -> JobStatus:
        return self._act(Action.REVIVE, job_id, "", lambda tx: lifecycle.revive(tx, job_id))

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        return self._act(
            Action.ROLLBACK, job_id, f"to checkpoint {checkpoint_id}",
            lambda tx: lifecycle.rollback(tx, job_id, checkpoint_id),
        )  # fmt: skip

    def pause(self, job_id: str, reason: str) -> JobStatus:
        by = self._name()
        return self._act(Action.PAUSE, job_id, reason, lambda tx: steering.pause(tx, job_id, by, reason))

    def resume(self, job_id: str) -> JobStatus:
        return self._act(Action.RESUME, job_id, "", lambda tx: steering.resume(tx, job_id))

    def stop(self, job_id: str, reason: str) -> JobStatus:
        by = self._name()
        return self._act(Action.STOP, job_id, reason, lambda tx: steering.pause(tx, job_id, by, reason, ends=True))

    def set_job(self, job_id: str, changes: JobChanges) -> JobStatus:
        def about(tx: Tx) -> About:
            priority = LOWEST_PRIORITY if changes.priority is None else changes.priority
            return replace(audit_trail.of_job(tx, job_id), priority=priority)

        return self._act(Action.SET, job_id, changes.words, lambda tx: steering.set_changes(tx, job_id, changes), about)

    def checkpoint_now(self, job_id: str, reason: str) -> SegmentStatus:
        asked: list[str] = []

        def ask(tx: Tx) -> bool:
            asked.append(steering.require_slots(tx, job_id))
            return lifecycle.revoke(tx, asked[-1], reason)

        audit_trail.act(self._ledger, self._caller, Action.BOUNDARY, _about(job_id), reason, ask)
        self.allocator.decide_soon()
        return self.segment(asked[-1])

    def promote(
        self, model: str, version: str, reason: str = "by hand", instead_of: str | None = None
    ) -> ChampionMoved:
        return self._move_champion(
            model, version, reason, lambda one, replaced: one.promote(model, version, replaced), instead_of
        )

    def roll_back_model(self, model: str, to: str) -> ChampionMoved:
        return self._move_champion(
            model, to, "rolled back to", lambda one, replaced: one.roll_back(model, to, replaced)
        )

    def _move_champion(
        self, model: str, version: str, detail: str, move: Callable[[Champions, str], ChampionMoved],
        instead_of: str | None = None,
    ) -> ChampionMoved:  # fmt: skip
        """To this version, in whichever registry that is: the caller is asked for the right to promote it, and to
        replace the champion (`instead_of`; None: the one of now), which `move` is told; empty: there is none."""
        if self._champions is None:
            raise InfrastructureError(
                "this control plane knows no registry of models: ask the one in Airflow's API server (`elastic status` "
                "says where it is)"
            )
        replaced = (self._champions.champion(model) or "") if instead_of is None else instead_of
        if replaced and replaced != version:
            about = partial(audit_trail.of_version, model=model, version=replaced)
            with audit_trail.asked(self._ledger, self._caller, Action.REPLACE, about, only_check=True):
                pass
        with audit_trail.asked(
            self._ledger, self._caller, Action.PROMOTE, lambda tx: audit_trail.of_version(tx, model, version),
            detail=detail,
        ) as outcome:  # fmt: skip
            moved = move(self._champions, replaced)
            outcome.changed = moved.before != moved.now
        return moved

    def _name(self) -> str:
        return PLATFORM if self._caller is None else self._caller.name

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.record_results(tx, job_id, results))

    def _change_job(self, job_id: str, work: Callable[[Tx], Any]) -> JobStatus:
        self._ledger.change(work)
        self.allocator.decide_pending()
        return self.job(job_id)

    def _act(
        self, action: Action, job_id: str, detail: str, work: Callable[[Tx], bool],
        about: Callable[[Tx], About] | None = None,
    ) -> JobStatus:  # fmt: skip
        """`_change_job` on behalf of the caller."""
        audit_trail.act(self._ledger, self._caller, action, about or _about(job_id), detail, work)
        self.allocator.decide_soon()
        return self.job(job_id)


def _about(job_id: str) -> Callable[[Tx], About]:
    return lambda tx: audit_trail.of_job(tx, job_id)
