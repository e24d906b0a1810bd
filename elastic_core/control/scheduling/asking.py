"""A policy is asked for a plan: within quotas, without who is paused, and checked before anybody takes it for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from elastic_core.control.ledger.tables import KEPT
from elastic_core.domain import Plan, Snapshot, Target
from elastic_core.errors import ElasticError
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.plans.exchanges import with_exchanges
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.policy.rules.placed_alone import decide_on_one_type, places
from elastic_core.policy.rules.slot_quotas import over_quota, with_waiting, within_quotas

AGAIN_SECONDS = 60.0


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
