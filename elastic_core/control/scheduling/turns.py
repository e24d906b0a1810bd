"""A turn at deciding: who has it makes decisions until a plan is in force. One has it at a time, over all processes.

Read a snapshot and its version; ask the policy outside any lock; then write the plan, under the scheduling lock, if the
version is still the same, and do at once what it allows.

Policies are asked in a process of their own, under a deadline. Where that gives no answer the last plan stays, once;
where a policy fails, gives an invalid plan, or is silent again, the pool is shared out fairly, here: that is bounded by
the slots of the pool. The record of the decision says which. What comes in the place of a plan that was not made is in
force whatever came meanwhile: who was silent is not asked the same again, for another deadline, before anybody has a
plan.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.scheduling import chosen_policy, enforce, snapshots
from elastic_core.control.scheduling.asking import ask, ask_within_quotas, carried_over
from elastic_core.control.scheduling.deciders import Decider, Pace
from elastic_core.control.scheduling.decision_records import Decision, Written, last_plan, write
from elastic_core.control.scheduling.policy_process import NoAnswer
from elastic_core.control.scheduling.predicting.predictors import STALE_SECONDS, Predictors
from elastic_core.crashing import crash_here
from elastic_core.domain import Plan, Snapshot
from elastic_core.logs import get_logger
from elastic_core.policy import registry
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.rules.placed_alone import places
from elastic_core.policy.rules.slot_quotas import over_quota

FALL_BACK = "fair_share"
DROPPED_BEFORE_LATE = 2
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one."""

    written: Written | None  # what became of the last plan; None where another is at it, and nothing was decided
    made: int = 0  # decisions
    jobs: int = 0  # that the last one was about
    seconds: float = 0.0  # that it took


class TurnsHere:
    """In this process."""

    def __init__(
        self, ledger: Ledger, decider: Decider, predictors: Predictors, settled: enforce.Settled,
        fit: snapshots.Fit | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._decider, self._predictors, self._settled = ledger, decider, predictors, settled
        self._fit = fit or predictors.model

    def snapshot(self) -> Snapshot:
        """What would be decided on now."""
        return self._policy_and_snapshot()[1]

    def _policy_and_snapshot(self) -> tuple[str, Snapshot]:
        """Who is to decide, and what it is asked with: of one moment, since the policy can be changed."""
        self._predictors.refresh(STALE_SECONDS)
        policy, built = self.asked_with()
        if self._fit == self._predictors.model:
            self._predictors.fit_together(built)
        return policy, self._predictors.classify(snapshots.with_models(built, self._fit))

    def asked_with(self) -> tuple[str, Snapshot]:
        """The same of now, as the ledger has it: without models, classes and forecasts."""
        return self._ledger.read(self._read_snapshot)

    def _read_snapshot(self, tx: Tx) -> tuple[str, Snapshot]:
        policy = chosen_policy.in_force(tx).policy
        return policy, snapshots.build(tx, policy, self._predictors.windows.profiles)

    def take(self, most: int) -> Turn:
        """Decide until a plan is in force, which is late after some that were dropped; `most`: so often at most."""
        with self._ledger.deciding() as acquired:
            if not acquired:
                return Turn(written=None)
            crash_here("decision.claimed")
            for made in range(1, most + 1):
                began = time.monotonic()
                written, jobs = self._decide_once(late=made > DROPPED_BEFORE_LATE)
                if written is not Written.DROPPED:
                    break
            return Turn(written, made, jobs, time.monotonic() - began)

    def _decide_once(self, late: bool) -> tuple[Written, int]:
        """What became of the plan, and about how many jobs it is. `late`: it comes into force although events came
        meanwhile. So does each that is about many jobs: something happens while any is made; and what stands in for the
        plan of a policy that gave none."""
        policy, snapshot = self._policy_and_snapshot()
        started = time.perf_counter()
        plan, failure = self._plan(policy, snapshot)
        decided = Decision(snapshot, plan, policy, failure, time.perf_counter() - started)
        crash_here("decision.unwritten")
        late = late or failure is not None or len(snapshot.jobs) >= Pace.MANY_JOBS
        written = write(self._ledger, decided, late, self._settled)
        crash_here("decision.written")
        return written, len(snapshot.jobs)

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
