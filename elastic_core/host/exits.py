"""How a worker ends: its exit codes, and which error means which. Agents and launchers read the codes back.

A worker's exit code is all that is certain of its end: its error file may be missing. What the end of a whole group
means is `protocol.process_groups.ExitKind`, found from the codes by `launch.exit_classification`. The values are
frozen: groups that run were started with them.
"""

from __future__ import annotations

from enum import IntEnum

from elastic_core.errors import ElasticError, Fenced, InfrastructureError, UserError


class ExitCode(IntEnum):
    """What a worker's exit says; any other code, or a signal, is a crash."""

    DONE = 0  # reached a boundary, or the end of the job
    USER_ERROR = 10  # the user's code raised
    INFRASTRUCTURE = 11  # the host, the network, the store or another rank failed
    STOPPED = 12  # ended without a commit because it was told to
    DIVERGED = 13  # ended without a commit because training diverged under an exchange that is not exact


class Stopped(ElasticError):
    """Stop without a commit: the job was cancelled, or the lease is over."""

    code = "stopped"


class Diverged(ElasticError):
    """Training diverged under an exchange that is not exact: to go on from the last commit by the exact sum."""

    code = "diverged"


class ExchangeBroken(InfrastructureError):
    """The gradient exchange failed: another rank is gone."""

    code = "exchange_broken"


def exit_code(error: BaseException) -> ExitCode:
    """The exit code for an error that ended training. What is none of the platform's errors is the user's."""
    if isinstance(error, (Stopped, Fenced)):
        return ExitCode.STOPPED
    if isinstance(error, Diverged):
        return ExitCode.DIVERGED
    if isinstance(error, UserError):
        return ExitCode.USER_ERROR
    if isinstance(error, (ElasticError, KeyboardInterrupt)):
        return ExitCode.INFRASTRUCTURE
    return ExitCode.USER_ERROR
