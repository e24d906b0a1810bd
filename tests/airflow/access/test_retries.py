from __future__ import annotations

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from elastic_airflow.access.retries import BUG_TRIES, MAX_DELAY_SECONDS, InfrastructureRetry
from elastic_core.errors import Conflict, InfrastructureError, UserError


@pytest.mark.parametrize("error", [UserError("no such task"), Conflict("another spec")])
def test_a_users_error_is_never_tried_again(error: Exception) -> None:
    decision = InfrastructureRetry().evaluate(error, 1, 500)
    assert decision.action is RetryAction.FAIL
    assert str(error) in (decision.reason or "")


@pytest.mark.parametrize("error", [InfrastructureError("API away"), OSError("disk"), TimeoutError()])
@pytest.mark.parametrize("tries", [1, 7, 499])
def test_a_fault_of_machines_is_tried_again_soon(error: Exception, tries: int) -> None:
    decision = InfrastructureRetry().evaluate(error, tries, 500)
    assert decision.action is RetryAction.RETRY
    assert decision.retry_delay is not None
    assert 2 <= decision.retry_delay.total_seconds() <= MAX_DELAY_SECONDS


def test_a_bug_is_not_tried_for_ever() -> None:
    policy, bug = InfrastructureRetry(), AttributeError("no attribute 'x'")
    assert policy.evaluate(bug, 1, 500).action is RetryAction.RETRY
    assert policy.evaluate(bug, BUG_TRIES, 500).action is RetryAction.FAIL
