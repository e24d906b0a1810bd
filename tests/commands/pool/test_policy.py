"""`elastic policy ...` against a real control API."""

from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from elastic_core.commands.pool.policy_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import UserError


def elastic(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_policy_is_shown_set_and_reset(control: LedgerControl) -> None:
    assert elastic("show").stdout == "fair_share, as configured\n"
    assert elastic("set", "horizon").stdout == (
        "horizon, set by `elastic policy set`; the configured one is fair_share\n"
    )
    assert json.loads(elastic("show", "--json").stdout) == {
        "policy": "horizon", "configured": "fair_share", "set_by_operator": True
    }  # fmt: skip
    assert control.policy().policy == "horizon"
    assert elastic("reset").stdout == "fair_share, as configured\n"


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do(control: LedgerControl) -> None:
    refused = elastic("set", "horizn").exception
    assert isinstance(refused, UserError)
    assert "no policy is called 'horizn'" in str(refused)
    assert "There are: " in str(refused)
    assert control.policy().policy == "fair_share"
