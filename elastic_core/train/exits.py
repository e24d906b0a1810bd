"""How a worker ends: its exit codes, and which error means which."""

from __future__ import annotations

from elastic_core.errors import ElasticError, Fenced, InfrastructureError, UserError

DONE, USER_ERROR, INFRASTRUCTURE, STOPPED = 0, 10, 11, 12


class Stopped(ElasticError):
    """Stop without a commit: the job was cancelled, or the lease is over."""

    code = "stopped"


class ExchangeBroken(InfrastructureError):
    """The gradient exchange failed: another rank is gone."""

    code = "exchange_broken"


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ended training. What is none of the platform's errors is the user's."""
    if isinstance(error, (Stopped, Fenced)):
        return STOPPED
    if isinstance(error, UserError):
        return USER_ERROR
    if isinstance(error, (ElasticError, KeyboardInterrupt)):
        return INFRASTRUCTURE
    return USER_ERROR
