"""Which failure of a task is tried again without a person: faults of machines and services, never a user's error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from elastic_core.errors import UserError

RETRIES = 500  # an outage of a night; the policy below fails early where trying again cannot help
MAX_DELAY_SECONDS = 30.0
# Errors of code rather than of machines. Some tries all the same: a file may be half deployed.
BUGS = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError, NotImplementedError)
BUG_TRIES = 3


class InfrastructureRetry(RetryPolicy):
    """Retry after 2, 4, 8, ... 30 seconds, unless the error is the user's or the code's own."""

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Any = None,
    ) -> RetryDecision:
        last_line = f"{type(exception).__name__}: {exception}"
        if isinstance(exception, UserError):
            return RetryDecision.fail(reason=last_line)
        if isinstance(exception, BUGS) and try_number >= BUG_TRIES:
            return RetryDecision.fail(reason=f"the same kind of error {BUG_TRIES} times: {last_line}")
        delay = min(2.0 ** min(try_number, 10), MAX_DELAY_SECONDS)
        return RetryDecision.retry(delay=timedelta(seconds=delay), reason=last_line)

    def serialize(self) -> dict[str, Any]:
        return {}


def infrastructure_retries() -> dict[str, Any]:
    """Arguments of an operator whose faults heal by themselves."""
    return {
        "retries": RETRIES,
        "retry_delay": timedelta(seconds=5),  # where no policy is asked: the task's process was killed
        "retry_policy": InfrastructureRetry(),
    }


def cleared(ti: Any, retries: int) -> bool:
    """Whether this is the first try after a person cleared the task: Airflow then grants `retries` more tries."""
    first_try = ti.max_tries - retries + 1
    return bool(ti.try_number > 1 and ti.try_number == first_try)
