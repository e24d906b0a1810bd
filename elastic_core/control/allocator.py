"""The transaction around a decision. There is no scheduler daemon: whoever causes a scheduling event decides.

Read a snapshot and its version; run the policy outside any lock; then, under the scheduling lock, write the plan if
the version is still the same, and do at once what it allows. One decision is in flight at a time, over all
processes; events that come meanwhile raise the version, and whoever decides goes on until nothing is left undecided.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from random import Random

from elastic_core.control import enforce, snapshots
from elastic_core.control.database import Ledger, Tx
from elastic_core.control.encoding import dumps, loads
from elastic_core.control.tables import DecisionRow
from elastic_core.domain import Plan, Snapshot, from_json, to_json
from elastic_core.errors import ElasticError, NotFound
from elastic_core.policy import registry
from elastic_core.policy.check import violations
from elastic_core.policy.contract import Policy
from elastic_core.predict.fit import job_models
from elastic_core.settings import Settings

FALL_BACK = "fair_share"
MAX_ROUNDS = 50  # decisions in one go; what is left then, the next event or reconcile takes up
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decided:
    plan: Plan
    wanted: str
    failure: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded decision and what its policy says today to the same inputs."""

    decision_id: int
    trigger: str
    snapshot: Snapshot
    recorded: Plan
    again: Plan

    @property
    def same(self) -> bool:
        return self.recorded == self.again


class Allocator:
    """Makes decisions for one ledger. Any number of processes may have one."""

    def __init__(self, ledger: Ledger, settings: Settings, fit: snapshots.Fit = job_models) -> None:
        self._ledger = ledger
        self._settings = settings
        self._fit = fit

    def snapshot(self) -> Snapshot:
        policy = self._settings.policy
        return snapshots.with_models(self._ledger.read(lambda tx: snapshots.build(tx, policy)), self._fit)

    def settle(self) -> None:
        """Decide until no scheduling event is left undecided, or leave it to the process that is at it."""
        rounds = 0
        while rounds < MAX_ROUNDS and self._ledger.read(_undecided):
            with self._ledger.deciding() as mine:
                if not mine:
                    return  # whoever is at it looks for what came meanwhile, once more after it has let go
                while not self._decide_once() and rounds < MAX_ROUNDS:
                    rounds += 1
            rounds += 1

    def wake(self) -> None:
        """Decide if the plan's own next time has come, or if a crash left an event undecided."""
        if self._ledger.read(_due):
            self._ledger.change(_take_wake_up)
            self.settle()

    def _decide_once(self) -> bool:
        """False when events came meanwhile and the plan was dropped."""
        snapshot = self.snapshot()
        started = time.perf_counter()
        plan, failure = self._plan(snapshot)
        decided = Decided(plan, self._settings.policy, failure, time.perf_counter() - started)
        return self._ledger.change(lambda tx: _write(tx, snapshot, decided))

    def _plan(self, snapshot: Snapshot) -> tuple[Plan, str | None]:
        try:
            return ask(registry.get(self._settings.policy), snapshot), None
        except Exception as error:
            log.exception("policy %s failed on version %d", self._settings.policy, snapshot.version)
            failure = f"{type(error).__name__}: {error}"
            return ask(registry.get(FALL_BACK), snapshot), failure


def ask(policy: Policy, snapshot: Snapshot) -> Plan:
    """The policy's valid plan. Raises `InvalidPlan`, or whatever the policy raises."""
    plan = policy.decide(snapshot, Random(snapshot.version))
    wrong = violations(plan, snapshot)
    if wrong:
        raise InvalidPlan(f"the plan of {policy.name} is refused: {'; '.join(wrong)}")
    return plan


class InvalidPlan(ElasticError):
    """A policy's plan breaks a limit of a job or the capacity of the pool."""

    code = "invalid_plan"


def _undecided(tx: Tx) -> bool:
    row = tx.scheduling()
    return row.version != row.decided_version


def _due(tx: Tx) -> bool:
    row = tx.scheduling()
    return row.version != row.decided_version or (row.wake_at is not None and row.wake_at <= tx.now)


def _take_wake_up(tx: Tx) -> None:
    """Only one of many callers that see the time come makes an event of it."""
    row = tx.scheduling()
    if row.wake_at is not None and row.wake_at <= tx.now:
        row.wake_at = None
        tx.trigger = "the plan's own wake-up"


def _write(tx: Tx, snapshot: Snapshot, decided: Decided) -> bool:
    """Under the scheduling lock: the plan comes into force, or is dropped because the ledger has moved on."""
    row = tx.scheduling()
    if row.version != snapshot.version:
        return False
    plan = decided.plan
    decision = DecisionRow(
        version=snapshot.version,
        at=tx.now,
        trigger=row.trigger,
        policy=plan.policy,
        wanted=decided.wanted,
        failure=decided.failure,
        seconds=decided.seconds,
        snapshot=to_json(snapshot),
        plan=to_json(plan),
        actions=[],
    )
    tx.session.add(decision)
    tx.session.flush()
    decision.actions, check_at = enforce.enforce(tx, snapshot, plan, decision.id)
    if decided.failure is None:  # else the wanted policy finds its own state again next time
        row.policy, row.policy_state = decided.wanted, dict(plan.state)
    row.decided_version = snapshot.version
    row.wake_at = min((t for t in (plan.wake_at, check_at) if t is not None), default=None)
    return True


def replay(tx: Tx, decision_id: int) -> Replay:
    """Make a recorded decision again from its inputs."""
    row = tx.session.get(DecisionRow, decision_id)
    if row is None:
        raise NotFound(f"there is no decision {decision_id}; `elastic jobs explain JOB` names the last one of a job")
    snapshot = from_json(Snapshot, row.snapshot)
    again = ask(registry.get(row.policy), snapshot)
    return Replay(
        decision_id, row.trigger, snapshot, from_json(Plan, row.plan), from_json(Plan, loads(dumps(to_json(again))))
    )
