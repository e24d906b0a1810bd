"""`elastic checkpoint fork`, and what shows a fork, against a real control API."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from elastic_core import cli, client
from elastic_core.commands.checkpoints.forking import changes_of
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import NotFound, UserError
from tests.builders import FACTS, Life, a_commit, a_spec

WHOLE = cli.build(["jobs.jobs_commands", "checkpoints.checkpoint_commands"])


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(WHOLE, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def committed(control: LedgerControl) -> int:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    return control.trainer(order.token).commit(a_commit(order, 3)).checkpoint_id


def test_a_checkpoint_is_forked_with_what_is_set(control: LedgerControl) -> None:
    number = committed(control)
    set_to = ("--set", "work.epochs=20", "--set", "slots.max=2", "--name", "wider")
    said = elastic("checkpoint", "fork", number, "--id", "fork", *set_to).stdout
    assert said.startswith(f"fork: active, forked from checkpoint {number} of job job-a (step 3, 30 samples); ")
    spec = control.job("fork").spec
    assert (spec.name, spec.work.epochs, spec.work.samples, spec.slots.max, spec.slots.min) == ("wider", 20, None, 2, 1)
    shown = elastic("jobs", "show", "fork").stdout
    assert f"from       checkpoint {number} of job job-a (step 3, 30 samples)" in shown
    made = json.loads(elastic("checkpoint", "fork", number, "--json").stdout)
    assert made["job_id"].startswith(f"fork-{number}-")
    assert client.fork(number, job_id="by-python", changes={"priority": 3}).job_id == "by-python"
    assert control.job("by-python").spec.priority == 3


def test_what_is_wrong_is_said(control: LedgerControl) -> None:
    number = committed(control)
    assert isinstance(elastic("checkpoint", "fork", 99).exception, NotFound)
    refused = elastic("checkpoint", "fork", number, "--set", "seed=3").exception
    assert "another seed than its parent" in str(refused)
    assert [job.job_id for job in control.jobs()] == ["job-a"]


def test_what_is_set_is_a_part_of_a_spec() -> None:
    given = ["work.epochs=20", "work.target_loss=0.1", "queue=vision", "deadline=2030-01-31", 'slots.types=["h200"]']
    assert changes_of(given) == {
        "work": {"epochs": 20, "target_loss": 0.1}, "queue": "vision", "deadline": "2030-01-31",
        "slots": {"types": ["h200"]},
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [["priority"], ["=3"], ["work..epochs=3"], ["work=3", "work.epochs=2"]])
def test_what_is_no_setting_is_refused(wrong: list[str]) -> None:
    with pytest.raises(UserError, match="--set"):
        changes_of(wrong)
