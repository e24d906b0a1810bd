"""The transaction around a decision. There is no scheduler daemon: whoever causes a scheduling event decides.

Read a snapshot and its version; run the policy outside any lock; then, under the scheduling lock, write the plan if
the version is still the same, and do at once what it allows. One decision is in flight at a time, over all
processes; events that come meanwhile raise the version, and whoever decides goes on until nothing is left undecided.

Where events come faster than plans are made, no plan would ever be of the moment. So after two that were dropped the
next comes into force late: what it grants and revokes goes by the slots and leases of now, and what it has not seen is
decided right after it. Whoever asked has a plan then, and does not wait for those that follow: they are made aside,
with pauses as long as they take themselves. Where jobs are many, the next plan is not dropped first either, until one
was of its moment again.

Decisions that take long, as with a thousand jobs, keep a distance (`deciders.Pace`): what comes in it is decided aside,
after it. Only who asks for a decision (`decide`) gets it at once. What a person asks for, of a job, a node or the
policy, is decided on aside, too: where many jobs train, events never end, and whoever decides may be at it for long.

What only carries a plan out is no such event: a segment that the plan ended is committed, its processes are gone, its
successor asks. The plan goes on then (`enforce.carry_on`), so that it is made once, not anew at each of its own steps.

Policies are asked in a process of their own, under a deadline. Where that gives no answer the last plan stays, once;
where a policy fails, gives an invalid plan, or is silent again, the pool is shared out fairly, here: that is bounded by
the slots of the pool. The record of the decision says which.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import KEPT
from elastic_core.control.scheduling import chosen_policy, enforce, snapshots
from elastic_core.control.scheduling.deciders import Aside, Decider, DecidesHere, Pace, at_once
from elastic_core.control.scheduling.decision_records import Decision, Recorded, Written, last_plan, write
from elastic_core.control.scheduling.policy_process import NoAnswer
from elastic_core.control.scheduling.predicting.predictors import STALE_SECONDS, Predictors
from elastic_core.crashing import crash_here
from elastic_core.domain import Plan, Snapshot, Target, from_json, to_json
from elastic_core.errors import ElasticError
from elastic_core.logs import get_logger
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.plans.exchanges import with_exchanges
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.policy.rules.placed_alone import decide_on_one_type, places
from elastic_core.policy.rules.slot_quotas import over_quota, with_waiting, within_quotas
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.settings import Settings

T = TypeVar("T")

FALL_BACK = "fair_share"
AGAIN_SECONDS = 60.0
MAX_ROUNDS = 50  # decisions in one go; what is left then, the next event or reconcile takes up
DROPPED_BEFORE_LATE = 2
ANSWERED_AFTER = 1.0
log = get_logger(__name__)


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

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        fit: snapshots.Fit | None = None,
        decider: Decider | None = None,
        aside: Aside = at_once,
    ) -> None:
        self._ledger, self._aside = ledger, aside
        self._decider = decider or DecidesHere()
        self.predictors = Predictors(ledger, settings)
        self._fit = fit or self.predictors.model
        self._settled = enforce.Settled()
        self._outrun = False  # the last plan was of a moment before its own
        self._pace = Pace()

    def snapshot(self) -> Snapshot:
        return self._policy_and_snapshot()[1]

    def _policy_and_snapshot(self) -> tuple[str, Snapshot]:
        """Who is to decide, and what it is asked with: of one moment, since the policy can be changed."""
        self.predictors.refresh(STALE_SECONDS)
        policy, built = self._ledger.read(_read_snapshot)
        if self._fit == self.predictors.model:
            self.predictors.fit_together(built)
        return policy, self.predictors.classify(snapshots.with_models(built, self._fit))

    def change(self, work: Callable[[Tx], T]) -> T:
        """`Ledger.change`; what is no news to the plan in force, but a step of it, lets it go on in the same change. So
        does a lost attempt: its job has slots again before anybody is asked, or else it is news."""

        def change_and_go_on(tx: Tx) -> T:
            result = work(tx)
            if tx.returning:
                enforce.give_back(tx)
            if tx.carries_out and tx.trigger is None:
                enforce.carry_on(tx, self._settled)
            return result

        return self._ledger.change(change_and_go_on)

    def decide(self, trigger: str) -> None:
        """Now, for this reason."""
        self._ledger.change(partial(_set_trigger, trigger=trigger))
        self._decide_what_is_left()

    def tell(self, trigger: str) -> None:
        """Of an event, on which to decide as on any other."""
        self._ledger.change(partial(_set_trigger, trigger=trigger))
        self.decide_pending()

    def decide_pending(self) -> None:
        """Decide until no scheduling event is left undecided, or a late plan is in force, or leave it to the process
        that is at it, or to a decision aside, after a pause."""
        if self.pauses:
            self._aside(self._catch_up)
        else:
            self._decide_what_is_left()

    def decide_soon(self) -> None:
        """Aside. What a person asked for is answered once it is decided on, or after `ANSWERED_AFTER` seconds; at once
        where jobs are no few: then something is undecided at any time."""
        self._aside(self.decide_pending)
        deadline = time.monotonic() + (ANSWERED_AFTER if self._pace.few else 0.0)
        while self._aside is not at_once and time.monotonic() < deadline and self._ledger.read(_is_undecided):
            time.sleep(0.02)

    @property
    def pauses(self) -> bool:
        """Decisions keep a distance now, where there is an aside to make them later."""
        return self._aside is not at_once and self._pace.holds

    def _decide_what_is_left(self) -> None:
        crash_here("change.undecided")
        rounds = 0
        while rounds < MAX_ROUNDS and self._ledger.read(_is_undecided):
            written, tried = self._decide_in_turn(MAX_ROUNDS - rounds)
            if written is None:
                return  # whoever is at it looks for what came meanwhile, once more after it has let go
            if written is Written.LATE:
                self._aside(self._catch_up)
                return
            rounds += tried

    def _catch_up(self) -> None:
        """Aside, until no event is left undecided."""
        for _ in range(MAX_ROUNDS):
            time.sleep(self._pace.left)
            if not self._ledger.read(_is_undecided) or self._decide_in_turn(MAX_ROUNDS)[0] is None:
                return

    def _decide_in_turn(self, most: int) -> tuple[Written | None, int]:
        """Until a plan is in force, which is late after some that were dropped. What became of the last, None where
        another process is at it; and how many were made."""
        with self._ledger.deciding() as acquired:
            if not acquired:
                return None, 0
            crash_here("decision.claimed")
            for made in range(1, most + 1):
                written = self._decide_once(late=made > DROPPED_BEFORE_LATE or (self._outrun and self._pace.many))
                if written is not Written.DROPPED:
                    break
            self._outrun = written is Written.LATE
            return written, made

    def wake(self) -> None:
        """Decide if the plan's own next time has come, or if a crash left an event undecided. Not in a pause."""
        if not self.pauses and self._ledger.read(is_due):
            self._ledger.change(_take_wake_up)
            self.decide_pending()

    def _decide_once(self, late: bool) -> Written:
        """`late`: the plan comes into force although events came meanwhile."""
        began = time.monotonic()
        policy, snapshot = self._policy_and_snapshot()
        started = time.perf_counter()
        plan, failure = self._plan(policy, snapshot)
        decided = Decision(snapshot, plan, policy, failure, time.perf_counter() - started)
        crash_here("decision.unwritten")
        written = write(self._ledger, decided, late, self._settled)
        crash_here("decision.written")
        self._pace.note(began, len(snapshot.jobs))
        return written

    def close(self) -> None:
        self._decider.close()

    def _plan(self, wanted: str, snapshot: Snapshot) -> tuple[Plan, str | None]:
        try:
            placing = places(registry.get(wanted))
            return ask_within_quotas(lambda within: self._decider.decide(wanted, within), snapshot, placing), None
        except Exception as error:
            log.exception("a policy failed", policy=wanted, version=snapshot.version)
            failure = f"{type(error).__name__}: {error}"
            last_plan = self._carry_over(snapshot, str(error)) if isinstance(error, NoAnswer) else None
            return last_plan or ask(registry.get(FALL_BACK), snapshot), failure

    def _carry_over(self, snapshot: Snapshot, why: str) -> Plan | None:
        """The last plan for the jobs of now; None where it does not fit them, or stayed already the last time."""
        last = self._ledger.read(last_plan)
        if last is None:
            return None
        plan = carried_over(last, snapshot, why)
        return None if violations(plan, snapshot) or any(over_quota(plan, snapshot)) else plan


def ask(policy: Policy, snapshot: Snapshot) -> Plan:
    """The policy's valid plan. Raises `InvalidPlan`, or whatever the policy raises."""
    return ask_within_quotas(lambda within: policy.decide(within, Random(snapshot.version)), snapshot, places(policy))


def ask_within_quotas(decide: Callable[[Snapshot], Plan], snapshot: Snapshot, placing: bool) -> Plan:
    """`placing`: whether the policy gives a job slots of several types."""
    asked, paused = without_paused(snapshot)
    within, waiting = within_quotas(asked)
    plan = decide(within) if placing else decide_on_one_type(decide, within)
    return checked(with_exchanges(with_waiting(plan, {**paused, **waiting}), snapshot), snapshot)


def checked(plan: Plan, snapshot: Snapshot) -> Plan:
    wrong = (*violations(plan, snapshot), *over_quota(plan, snapshot))
    if wrong:
        raise InvalidPlan(f"the plan of {plan.policy} is refused: {'; '.join(wrong)}")
    return plan


def carried_over(last: Plan, snapshot: Snapshot, why: str) -> Plan:
    """The last plan's targets for the jobs that are still there; who is new waits. To be asked again soon. `why` is
    noted with the plan: it may say how long was waited, which no reason does."""
    asked, paused = without_paused(snapshot)
    targets = {
        job.job_id: replace(target, reason=f"{target.reason} (kept: no new decision came)")
        if (target := last.targets.get(job.job_id)) is not None
        else Target.nothing("waits: no new decision came, and the last plan, which stays, does not know it")
        for job in asked.jobs
    }
    return Plan(policy=KEPT, targets={**targets, **paused}, wake_at=snapshot.now + AGAIN_SECONDS, notes=(why,))


class InvalidPlan(ElasticError):
    """A policy's plan breaks a limit of a job or the capacity of the pool."""

    code = "invalid_plan"


def _read_snapshot(tx: Tx) -> tuple[str, Snapshot]:
    policy = chosen_policy.in_force(tx).policy
    return policy, snapshots.build(tx, policy)


def _set_trigger(tx: Tx, trigger: str) -> None:
    tx.trigger = trigger


def _is_undecided(tx: Tx) -> bool:
    return tx.scheduling().is_undecided


def is_due(tx: Tx) -> bool:
    return tx.scheduling().is_due(tx.now)


def _take_wake_up(tx: Tx) -> None:
    """Only one of many callers that see the time come makes an event of it."""
    row = tx.scheduling()
    if row.wake_at is not None and row.wake_at <= tx.now:
        row.wake_at = None
        tx.trigger = "the plan's own wake-up"


def replay(found: Recorded, decider: Decider) -> Replay:
    """Make a recorded decision again from its inputs, in no transaction: a policy takes its time."""
    if found.kept is not None:
        again = carried_over(found.kept, found.snapshot, found.plan.notes[0])
    else:
        placing = places(registry.get(found.policy))
        again = ask_within_quotas(lambda within: decider.decide(found.policy, within), found.snapshot, placing)
    again = from_json(Plan, loads(dumps(to_json(again))))
    return Replay(found.decision_id, found.trigger, found.snapshot, found.plan, again)
