"""Exit codes and kinds: their values, which running groups and the ledger hold, and which error means which."""

from __future__ import annotations

import pytest

from elastic_core.errors import CorruptCheckpoint, Fenced, InfrastructureError, UserError
from elastic_core.host.exits import Diverged, ExchangeBroken, ExitCode, Stopped, exit_code
from elastic_core.protocol.process_groups import ExitKind


def test_values_are_those_of_groups_that_run() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0, "USER_ERROR": 10, "INFRASTRUCTURE": 11, "STOPPED": 12, "DIVERGED": 13,
    }  # fmt: skip
    assert [str(kind) for kind in ExitKind] == [
        "boundary", "finished", "user_error", "infrastructure", "stopped", "diverged",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (Stopped("cancelled"), ExitCode.STOPPED),
        (Fenced("another epoch"), ExitCode.STOPPED),
        (Diverged("the loss is not finite"), ExitCode.DIVERGED),
        (UserError("no such column"), ExitCode.USER_ERROR),
        (KeyError("labels"), ExitCode.USER_ERROR),
        (InfrastructureError("the store is away"), ExitCode.INFRASTRUCTURE),
        (CorruptCheckpoint("bytes"), ExitCode.INFRASTRUCTURE),
        (ExchangeBroken("a rank is gone"), ExitCode.INFRASTRUCTURE),
        (KeyboardInterrupt(), ExitCode.INFRASTRUCTURE),
    ],
)
def test_an_error_has_its_exit_code(error: BaseException, want: ExitCode) -> None:
    assert exit_code(error) is want
