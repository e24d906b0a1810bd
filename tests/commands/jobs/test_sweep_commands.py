"""`elastic jobs submit --sweep`, `list --group` and `cancel --group` against a real control API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elastic_core.commands.jobs.jobs_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import NotFound, UserError
from elastic_core.spec import parse_job_spec
from tests.builders import FACTS, FakeJobRuns, Life, a_commit, a_spec


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def refused(*arguments: object) -> str:
    raised = elastic(*arguments).exception
    assert isinstance(raised, UserError), raised
    return str(raised)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "digits.yaml"
    file.write_text(json.dumps(a_spec(slots=(1, 1)).model_dump(mode="json"), indent=1))
    return file


def record(control: LedgerControl, runs: FakeJobRuns) -> None:
    """What each run does first."""
    for job_id, run in runs.runs.items():
        control.submit(job_id, parse_job_spec(run.conf["spec"]), FACTS)


def test_a_sweep_of_the_command_line_is_a_group_of_jobs(control: LedgerControl, runs: FakeJobRuns, spec: Path) -> None:
    sweep = ("--sweep", "params.learning_rate=0.01,3e-2", "--sweep", "batch.max=64,128", "--id", "night", "--wait", 0)
    said = elastic("submit", spec, *sweep)
    assert said.exit_code == 0, said.output
    assert "night-001  starting  params.learning_rate 0.01, batch.max 128" in said.stdout
    assert "group night: `elastic jobs list --group night` compares its jobs" in said.stdout
    made = [parse_job_spec(run.conf["spec"]) for run in runs.runs.values()]
    assert [(one.params["learning_rate"], one.batch.max) for one in made] == [
        (0.01, 64), (0.01, 128), (0.03, 64), (0.03, 128)
    ]  # fmt: skip
    again = elastic("submit", spec, *sweep, "--json")
    assert (len(json.loads(again.stdout)["members"]), len(runs.runs)) == (4, 4)
    record(control, runs)
    assert "group      night: params.learning_rate 0.03, batch.max 64" in elastic("show", "night-002").stdout


@pytest.mark.parametrize("name", ["members.json", "members.yaml"])
def test_a_file_lists_members(control: LedgerControl, runs: FakeJobRuns, spec: Path, tmp_path: Path, name: str) -> None:
    members = tmp_path / name
    members.write_text('[{"seed": 1, "batch.max": 64},\n {"seed": 2}]')
    assert elastic("submit", spec, "--sweep-file", members, "--wait", 0).exit_code == 0
    assert [parse_job_spec(run.conf["spec"]).seed for run in runs.runs.values()] == [1, 2]
    assert all(job_id.startswith("digits-") for job_id in runs.runs)


def test_a_sweep_that_is_wrong_is_refused_in_words(
    control: LedgerControl, runs: FakeJobRuns, spec: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text("- seed: 1\n- seed: one\n")
    no_list, twice = tmp_path / "no_list.json", tmp_path / "twice.yaml"
    no_list.write_text('{"seed": [1]}')
    twice.write_text("- seed: 1\n  seed: 2\n")
    for arguments, says in (
        (("--sweep", "batch.mx=1"), "did you mean 'batch.max'?"),
        (("--sweep", "seed="), "the sweep gives no values for 'seed'"),
        (("--sweep", f"seed={','.join(map(str, range(257)))}"), "the sweep has 257 members"),
        (("--sweep", "seed=1,a"), "digits-"),
        (("--sweep", "seed=1", "--sweep-file", listed), "give --sweep or --sweep-file, not both"),
        (("--sweep-file", listed, "--id", "g"), "1 of 2 members of the sweep is wrong, so that none is started. The "
         "first is g-001 (seed one): the job spec has 1 problem:\n- seed: input should be a valid integer"),
        (("--sweep-file", no_list), "holds no list"),
        (("--sweep-file", twice), "twice.yaml is not YAML: line 2: the key 'seed' is there already, in line 1"),
    ):  # fmt: skip
        assert says in refused("submit", spec, *arguments), arguments
    assert runs.runs == {}


def test_a_group_is_compared_by_metric_the_best_first(control: LedgerControl, runs: FakeJobRuns, spec: Path) -> None:
    elastic("submit", spec, "--sweep", "seed=1,2,3,4", "--id", "night", "--wait", 0)
    record(control, runs)
    control.submit("alone", a_spec(), FACTS)
    for job_id, loss in (("night-000", 0.5), ("night-002", 0.25)):
        control.record_results(job_id, {"evaluation": {"loss": loss, "accuracy": 0.5}})
    control.cancel("night-000", "enough")
    order = Life(control, control.trainer, "night-003").start()
    control.trainer(order.token).commit(a_commit(order, 9, metrics={"loss": 0.125}))
    told = elastic("list", "--group", "night")
    lines = [line.split() for line in told.stdout.splitlines()]
    assert lines[0] == ["job", "state", "seed", "loss"]
    assert [line[0] for line in lines[1:]] == ["night-002", "night-000", "night-003", "night-001"]
    assert [line[-1] for line in lines[1:3]] == ["0.25", "0.5"]
    assert (lines[3][2:], lines[4][2:]) == (["4", "0.125", "in", "training,", "step", "9"], ["2", "-"])
    printed: list[dict[str, Any]] = json.loads(elastic("list", "--group", "night", "--json").stdout)
    assert [(one["job"]["job_id"], one["values"], one["value"]) for one in printed[:2]] == [
        ("night-002", {"seed": 3}, 0.25), ("night-000", {"seed": 1}, 0.5)
    ]  # fmt: skip
    assert len(elastic("list", "--group", "night", "--active").stdout.splitlines()) == 4
    assert isinstance(elastic("list", "--group", "day").exception, NotFound)


def test_who_has_diverged_comes_last(control: LedgerControl, runs: FakeJobRuns, spec: Path) -> None:
    elastic("submit", spec, "--sweep", "seed=1,2,3", "--id", "night", "--wait", 0)
    record(control, runs)
    for job_id, loss in (("night-000", float("nan")), ("night-001", float("-inf")), ("night-002", 0.5)):
        control.record_results(job_id, {"evaluation": {"loss": loss}})
    lines = [line.split() for line in elastic("list", "--group", "night").stdout.splitlines()]
    assert [(line[0], line[-1]) for line in lines[1:]] == [
        ("night-002", "0.5"), ("night-000", "nan"), ("night-001", "-inf")
    ]  # fmt: skip
    printed = json.loads(elastic("list", "--group", "night", "--json").stdout)
    assert [one["value"] for one in printed] == [0.5, "NaN", "-Infinity"]


def test_a_group_is_cancelled_as_one(control: LedgerControl, runs: FakeJobRuns, spec: Path) -> None:
    elastic("submit", spec, "--sweep", "seed=1,2", "--id", "night", "--wait", 0)
    record(control, runs)
    control.submit("alone", a_spec(), FACTS)
    asked = CliRunner().invoke(app, ["cancel", "--group", "night"], input="n\n", env={"COLUMNS": "200"})
    assert (asked.exit_code, "Cancel all jobs of group night?" in asked.stderr) == (1, True)
    done = elastic("cancel", "--group", "night", "--yes", "--json")
    assert [(one["job_id"], one["state"]) for one in json.loads(done.stdout)] == [
        ("night-000", "cancelled"), ("night-001", "cancelled")
    ]  # fmt: skip
    assert [job.job_id for job in control.jobs(active_only=True)] == ["alone"]
    assert "--group goes alone" in refused("cancel", "alone", "--group", "night")
