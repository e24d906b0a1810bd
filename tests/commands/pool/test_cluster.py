"""`elastic cluster` against a real control API."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from elastic_core.commands.pool.cluster_commands import app
from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, Life, a_spec


def elastic(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_who_holds_which_slot_and_who_waits_for_what(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(slots=(2, 2)), FACTS)
    Life(control, control.trainer, "job-a").start()
    control.submit("job-b", a_spec(slots=(4, 4)), FACTS)
    control.acquire("job-b__seg_0")
    control.set_aside_node("node-b", "its fan is broken")
    said = elastic()
    assert "node-a  cpu   2      2     in use                        job-a:0,1" in said
    assert "node-b  cpu   2      0     set aside: its fan is broken" in said
    assert "0 of 2 slots are free; 1 job without slots" in said
    assert "  job-b: " in said
    told = json.loads(elastic("--json"))
    assert [(slot["node"], slot["usable"], slot["job"]) for slot in told["slots"]] == [
        ("node-a", True, "job-a"), ("node-a", True, "job-a"), ("node-b", False, None), ("node-b", False, None),
    ]  # fmt: skip
    assert [waiting["job_id"] for waiting in told["waiting"]] == ["job-b"]


def test_slots_of_a_job_that_has_ended_are_not_free_before_its_processes_are_gone(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "job-a").start()
    control.cancel("job-a", "enough")
    said = elastic()
    assert "2 by processes that end" in said
    assert "0 of 4 slots are free; 0 jobs without slots" in said
