"""`elastic jobs ...` against a real control API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from elastic_core.commands.jobs_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import JobState, to_json
from elastic_core.errors import NotFound, UserError
from tests.builders import (
    CONTROL_SECRET,
    FACTS,
    TRAINER_SECRET,
    FakeClock,
    Life,
    a_cluster,
    a_commit,
    a_control,
    a_spec,
)
from tests.control.serving import served


@pytest.fixture
def control(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerControl]:
    """A control API with the settings of this test's environment pointing at it."""
    plane = a_control(ledger_url, tmp_path, FakeClock())
    plane.set_cluster(a_cluster())
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, secret in (("control", CONTROL_SECRET), ("trainer", TRAINER_SECRET), ("ledger_url", ledger_url.encode())):
        (secrets / name).write_bytes(secret)
    mounted = FastAPI()
    mounted.mount(
        "/elastic",
        create_app(plane, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None),
    )
    with served(mounted) as url:
        monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
        monkeypatch.setenv("ELASTIC_CONTROL_URL", f"{url}/elastic")
        monkeypatch.setenv("ELASTIC_POLICY", "fair_share")
        yield plane
    plane.close()


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def printed(*arguments: object) -> Any:
    done = elastic(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_job_is_submitted_from_a_file_and_found_again(
    control: LedgerControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The task's own process imports torch and its data set: `train` has tests for it.
    monkeypatch.setattr("elastic_core.train.process.inspect.inspect_job", lambda spec, settings: FACTS)
    file = tmp_path / "digits.json"
    file.write_text(json.dumps(to_json(a_spec())))
    assert printed("submit", file, "--id", "job-a")["job_id"] == "job-a"
    assert "job-a: active, not started" in elastic("submit", file, "--id", "job-a").stdout
    assert printed("submit", file)["job_id"].startswith("digits-")
    assert len(printed("list")) == 2
    assert control.job("job-a").spec == a_spec()


def test_a_file_that_is_no_spec_is_refused(control: LedgerControl, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path, says in ((broken, "is not JSON"), (tmp_path / "none.json", "cannot be read: No such file")):
        assert isinstance(raised := elastic("submit", path).exception, UserError)
        assert says in str(raised)


def test_everything_can_be_looked_at(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    control.trainer(order.token).commit(a_commit(order, 500))
    assert "4: node-a:0,1 node-b:0,1" in elastic("list", "--active").stdout
    shown = elastic("show", "job-a").stdout
    assert "5000 of 10000 samples (50%), step 500" in shown
    assert "work left  5,000 samples, as declared" in shown
    assert "job-a__seg_0 (running), lineage 0" in shown
    assert "running" in elastic("segments", "job-a").stdout
    assert printed("segments", "job-a")[0]["segment_id"] == order.segment_id
    explained = elastic("explain", "job-a").stdout
    assert "by fair_share" in explained
    assert "after: job-a__seg_0 asks for slots" in explained
    assert isinstance(elastic("show", "nobody").exception, NotFound)


def test_a_job_is_cancelled_revived_and_rolled_back(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    trainer = control.trainer(order.token)
    first = trainer.commit(a_commit(order, 5)).checkpoint_id
    trainer.commit(a_commit(order, 9))
    assert printed("cancel", "job-a", "--reason", "enough")["error"] == "enough"
    assert printed("revive", "job-a")["segment_id"] == "job-a__seg_1"
    assert printed("rollback", "job-a", first)["step"] == 5
    assert control.job("job-a").state is JobState.ACTIVE


def test_a_decision_is_replayed(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    number = control.explain("job-a").decision_id
    assert printed("replay", number)["same"] is True
    assert "the same" in elastic("replay", number).stdout
    assert isinstance(elastic("replay", 999).exception, NotFound)
