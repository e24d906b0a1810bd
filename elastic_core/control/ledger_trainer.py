"""`TrainerControl` over the ledger: what the processes of one job report, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.orders import exact_loss_of, launch_order
from elastic_core.control.ledger.tables import SegmentRow
from elastic_core.control.number_checks import check_numbers
from elastic_core.control.paces import Paces
from elastic_core.control.scheduling.allocator import Allocator
from elastic_core.control.scheduling.deciders import Aside
from elastic_core.control.seen_lately import SeenLately
from elastic_core.control.transitions import endings, node_health, progress
from elastic_core.control.transitions.commits import OrderOf, check_final
from elastic_core.control.transitions.commits import commit as make_commit
from elastic_core.control.transitions.handover import is_planned
from elastic_core.crashing import crash_here
from elastic_core.domain import ExactLoss, Observation, SegmentState, Slot
from elastic_core.logs import get_logger
from elastic_core.protocol.process_groups import ExitKind, ExitReport
from elastic_core.protocol.tokens import Claims, TrainerTokens, check_agent, check_trainer
from elastic_core.protocol.trainer import (
    Commit,
    CommitAnswer,
    Heartbeat,
    HeartbeatAnswer,
    check_commit,
    check_observations,
)

log = get_logger(__name__)


class LedgerTrainer:
    """`TrainerControl` for the processes of one token.

    What a trainer reports is committed before anything is decided from it: a decision that fails then is logged and
    left to the next event, because training must go on.
    """

    def __init__(
        self, ledger: Ledger, allocator: Allocator, aside: Aside, lately: SeenLately, paces: Paces,
        tokens: TrainerTokens, claims: Claims, sent_at: float | None = None,
    ) -> None:  # fmt: skip
        """`aside`: what nobody waits for. `sent_at`: see `LedgerControl.trainer`."""
        self._ledger, self._allocator, self._aside = ledger, allocator, aside
        self._lately, self._paces = lately, paces
        self._tokens = tokens
        self._claims = claims
        self._sent_at = sent_at

    @property
    def identity(self) -> tuple[str, bool]:
        """Its job's processes, or the agents that watch them: over all segments."""
        return self._claims.job_id, self._claims.agent

    def check_may(self, method: str) -> None:
        """What each method checks itself, ahead, of who asks it. Raises `Unauthorized`."""
        if method in ("exited", "release_slots"):
            check_agent(self._claims)
        else:
            check_trainer(self._claims, self._ledger.clock())

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        self._check(beat)
        answer, due = self._ledger.write(
            lambda tx: progress.heartbeat(tx, self._tokens, self._claims, beat, self._lately)
        )
        if due and not self._allocator.pauses:  # aside: a heartbeat is answered while a policy thinks, or hangs
            self._try_to_decide(lambda: self._aside(self._allocator.wake))
        return answer

    def observe(self, observations: Sequence[Observation]) -> None:
        self._check(*observations)
        self._paces.reports.check(self._claims.job_id, self._ledger.clock())  # first: it costs less
        size_bytes = check_observations(observations)
        difference = self._ledger.write(lambda tx: progress.observe(tx, self._claims, observations))
        self._paces.reports.count(self._claims.job_id, self._ledger.clock(), len(observations), size_bytes)
        if difference is not None and self._lately.is_first_difference(self._claims.epoch):
            log.warning(f"reports that differ from their lease count as not told: {difference}",
                        job=self._claims.job_id, epoch=self._claims.epoch)  # fmt: skip

    def mark_bad(self, checkpoint_id: int, why: str) -> None:
        self._check(checkpoint_id)
        self._ledger.write(lambda tx: progress.mark_bad(tx, self._claims, checkpoint_id, why))

    def commit(self, commit: Commit) -> CommitAnswer:
        self._check(commit)
        self._paces.commits.check(self._claims.job_id, self._ledger.clock(), final=commit.final)  # first: it costs less
        size_bytes = check_commit(commit)
        answer = self._commit(commit)
        self._paces.commits.count(self._claims.job_id, self._ledger.clock(), size_bytes)
        return answer

    def _commit(self, commit: Commit) -> CommitAnswer:
        if self._sent_at is not None:
            commit = commit.timed_by(self._ledger.clock(), self._sent_at)
        if not commit.final:
            return self._ledger.write(lambda tx: make_commit(tx, self._order_of(None), self._claims, commit))
        is_to_be_decided, loss = (
            (False, None) if commit.finished else self._ledger.read(lambda tx: self._before_boundary(tx, commit))
        )
        if is_to_be_decided:
            if not commit.draining:  # those end by themselves: others have to be started first
                self._paces.boundaries.take(self._claims.job_id, self._ledger.clock())
            # Decided before, not after: what the job gets next is then known when the lease could be handed over. A
            # boundary that the plan asked for, or waited for, carries it out; else the plan would be made again at
            # every one of its own steps, from a picture in which it is half carried out.
            self._try_to_decide(lambda: self._allocator.tell(f"boundary of {self._claims.segment_id}"))
            crash_here("boundary.decided")
        answer = self._ledger.change(lambda tx: make_commit(tx, self._order_of(loss), self._claims, commit))
        self._try_to_decide(self._allocator.decide_pending)
        return answer

    def release_slots(self, slots: Sequence[Slot], epoch: int) -> None:
        check_agent(self._claims)
        check_numbers(epoch, *slots)
        self._allocator.change(lambda tx: progress.release_slots(tx, self._claims, slots, epoch))
        self._try_to_decide(self._allocator.decide_pending)

    def exited(self, report: ExitReport) -> None:
        check_agent(self._claims)
        check_numbers(report)
        self._allocator.change(lambda tx: group_gone(tx, self._claims.origin_epoch, report))
        self._try_to_decide(self._allocator.decide_pending)

    def _check(self, *said: Any) -> None:
        """Who says it, and every number of what is said: before anything of it is written."""
        check_trainer(self._claims, self._ledger.clock())
        check_numbers(*said)

    def _order_of(self, exact_loss: ExactLoss | None) -> OrderOf:
        return partial(launch_order, tokens=self._tokens, exact_loss=exact_loss)

    def _before_boundary(self, tx: Tx, commit: Commit) -> tuple[bool, ExactLoss | None]:
        """Whether it has yet to be decided what the job gets, and what an order for it takes long to find out.

        Raises what the commit would, where it would be decided on: a decision is everybody's.
        """
        segment = tx.session.get(SegmentRow, self._claims.segment_id)
        if segment is None or not SegmentState(segment.state).open:
            return False, None
        planned = is_planned(tx, segment)
        if not planned:
            check_final(tx, self._claims, commit)
        return not planned, exact_loss_of(tx, self._claims.job_id)

    @staticmethod
    def _try_to_decide(decision: Any) -> None:
        try:
            decision()
        except Exception:
            log.exception("a decision failed; the next event or reconciliation makes it up")


def group_gone(tx: Tx, origin_epoch: int, report: ExitReport) -> None:
    """At once, not at the next reconciliation: a node that fails jobs uses up their attempts within seconds."""
    endings.group_gone(tx, origin_epoch, report)
    if report.kind == ExitKind.INFRASTRUCTURE:
        node_health.judge_failures(tx)
