"""The one rule: who may do what to a queue or a job, as a table; and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_core.control.teams.permissions import ACTS, LOOKS, About, Action, check, check_method
from elastic_core.errors import Forbidden
from elastic_core.protocol import calls
from elastic_core.protocol.callers import Caller, Way
from elastic_core.spec import QueueSpec

OPEN = QueueSpec(name="default")
TEAM = QueueSpec(name="vision", owners=("olga", "group:leads"), members=("ann", "group:vision", "dag:nightly"))
ON_JOBS = (Action.CANCEL, Action.REVIVE, Action.ROLLBACK, Action.BOUNDARY, Action.ATTACH)


def caller(name: str, *groups: str, unrestricted: bool = False) -> Caller:
    return Caller(name=name, way=Way.REST, groups=frozenset(groups), unrestricted=unrestricted)


def about(queue: QueueSpec | None, submitted_by: str | None = None, priority: int = 0) -> About:
    return About(subject="job 'a'", job_id="a", queue=queue, submitted_by=submitted_by, priority=priority)


def may(*arguments: Any) -> bool:
    try:
        check(*arguments)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("who", "submits", "acts_on_own", "acts_on_others", "acts_on_the_pool"),
    [
        (caller("root@host", unrestricted=True), True, True, True, True),
        (caller("olga"), True, True, True, False),
        (caller("lea", "leads"), True, True, True, False),
        (caller("ann"), True, True, False, False),
        (caller("ben", "vision"), True, True, False, False),
        (caller("dag:nightly"), True, True, False, False),
        (caller("eve"), False, False, False, False),
        (caller("vision"), False, False, False, False),
        (caller("eve", "olga", "ann"), False, False, False, False),
        (caller("group:vision"), False, False, False, False),
    ],
    ids=lambda value: value.name if isinstance(value, Caller) else str(value),
)
def test_what_each_role_may_do_in_a_teams_queue(
    who: Caller, submits: bool, acts_on_own: bool, acts_on_others: bool, acts_on_the_pool: bool
) -> None:
    assert may(who, Action.SUBMIT, about(TEAM)) is submits
    for action in ON_JOBS:
        assert may(who, action, about(TEAM, submitted_by=who.name)) is acts_on_own, action
        assert may(who, action, about(TEAM, submitted_by="zoe")) is acts_on_others, action
        assert may(who, action, about(TEAM, submitted_by=None)) is acts_on_others, action
    registered = replace(about(TEAM, submitted_by="zoe"), registered=True)
    assert may(who, Action.WARM_START, registered) is submits
    assert may(who, Action.REPLACE, registered) is submits
    assert may(who, Action.REPLACE, about(None)), "no job has made it"
    for action in (Action.SET_POLICY, Action.SET_CLUSTER):
        assert may(who, action, about(None)) is acts_on_the_pool, action


def test_a_queue_without_owners_and_members_is_everybodys() -> None:
    for action in (Action.SUBMIT, *ON_JOBS):
        assert may(caller("eve"), action, about(OPEN, submitted_by="zoe"))
    assert not may(caller("eve"), Action.SET_POLICY, about(None))


def test_priority_is_bounded_for_all_but_owners() -> None:
    for queue in (TEAM.model_copy(update={"max_priority": 5}), OPEN.model_copy(update={"max_priority": 5})):
        assert may(caller("ann"), Action.SUBMIT, about(queue, priority=5))
        assert not may(caller("ann"), Action.SUBMIT, about(queue, priority=6))
        assert may(caller("root@host", unrestricted=True), Action.SUBMIT, about(queue, priority=100))
    assert may(caller("olga"), Action.SUBMIT, about(TEAM.model_copy(update={"max_priority": 5}), priority=100))


@pytest.mark.parametrize(
    ("who", "action", "what", "said"),
    [
        (
            caller("eve", "user"), Action.SUBMIT, about(TEAM),
            "'eve' may not submit job 'a' of queue 'vision': the queue is of olga, group:leads, ann, group:vision, "
            "dag:nightly, and 'eve' is in user. Ask its owners (olga, group:leads)",
        ),
        (
            caller("ann"), Action.CANCEL, about(TEAM, submitted_by="zoe"),
            "'ann' may not cancel job 'a' of queue 'vision': 'zoe' submitted it, and members act on their own jobs "
            "only. Ask its owners (olga, group:leads)",
        ),
        (
            caller("ann"), Action.SUBMIT, about(OPEN.model_copy(update={"max_priority": 0}), priority=9),
            "its priority is 9, and the queue takes at most 0 from others than its owners. Take that, or ask "
            "the operator",
        ),
        (caller("ann"), Action.SET_POLICY, About(subject="policy fifo"), "that is for the operator"),
    ],
)  # fmt: skip
def test_a_refusal_says_who_what_what_is_allowed_and_whom_to_ask(
    who: Caller, action: Action, what: About, said: str
) -> None:
    with pytest.raises(Forbidden) as refused:
        check(who, action, what)
    assert said in str(refused.value)


def test_every_method_of_the_service_is_looking_acting_or_the_platforms_own() -> None:
    user = caller("ann")
    allowed = {name for name in calls.service_methods() if not _refused(user, name)}
    assert allowed == (LOOKS | ACTS) - {"decide"}
    assert {"reconcile", "swept", "record_results", "fail", "acquire", "launch_order", "process_group_gone", "decide",
            "ensure_segment_runs"} == calls.service_methods().keys() - allowed  # fmt: skip


def _refused(who: Caller, name: str) -> bool:
    try:
        check_method(who, name)
    except Forbidden:
        return True
    return False
