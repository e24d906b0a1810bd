"""What another policy would have done: over a real ledger, in process, over HTTP and from the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from typer.testing import CliRunner

from elastic_core.cli import build
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc import whatif
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import JobState, Plan, Snapshot
from elastic_core.errors import Conflict, UserError
from elastic_core.policy import registry
from elastic_core.policy.baselines.fair_share import FairShare
from elastic_core.policy.rules.paused_jobs import without_paused
from elastic_core.sim import projection
from tests.builders import CONTROL_SECRET, FACTS, TRAINER_SECRET, FakeClock, Life, a_commit, a_spec, an_observation
from tests.control.serving import served


def run_to_the_end(control: LedgerControl, clock: FakeClock, job_id: str) -> None:
    """Five seconds to start, a hundred seconds of training in ten reports, then the last commit."""
    control.submit(job_id, a_spec(slots=(2, 2)), FACTS)
    life = Life(control, control.trainer, job_id)
    control.acquire(life.segment_id())
    clock.advance(5.0)
    order = life.start()
    for report in range(1, 11):
        clock.advance(10.0)
        control.trainer(order.token).observe([an_observation(100 * report, order)])
    control.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    life.leave(order)


@pytest.fixture
def ran(control: LedgerControl, clock: FakeClock) -> LedgerControl:
    """A ledger with two jobs that ran one after the other, and one that was cancelled before it began."""
    for job_id in ("job-a", "job-b"):
        run_to_the_end(control, clock, job_id)
        clock.advance(60.0)
    control.submit("job-c", a_spec(), FACTS)
    control.cancel("job-c", "not wanted")
    return control


def test_the_history_holds_what_was_run_and_measured(ran: LedgerControl) -> None:
    a, b, c = ran.history(10)
    assert [job.job_id for job in (a, b, c)] == ["job-a", "job-b", "job-c"]
    assert (a.state, a.done_samples, a.total_samples) == (JobState.FINISHED, 10_000, 10_000)
    assert a.finished_at is not None
    assert a.finished_at - a.submitted_at == pytest.approx(105.0)
    assert [point.num_slots for point in a.profile] == [2]
    assert [lease.allocation.num_slots for lease in a.leases] == [2]
    assert c.leases == ()
    assert [job.job_id for job in ran.history(2)] == ["job-b", "job-c"]


def test_the_history_knows_who_declared_work_and_in_which_unit(control: LedgerControl) -> None:
    works = {
        "samples": {"samples": 10_000},
        "undeclared": {"samples": 10_000, "target_loss": 0.1},
        "progress": {"samples": 10_000, "measure": "progress"},
    }
    for job_id, work in works.items():
        control.submit(job_id, a_spec(work=work), FACTS)
    found = {job.job_id: (job.most_samples, job.scale_invariant) for job in control.history(10)}
    assert found == {
        "samples": (None, False), "undeclared": (10_000, False), "progress": (None, True),
    }  # fmt: skip


def test_a_replay_says_how_it_was_and_how_it_would_have_been(ran: LedgerControl) -> None:
    found = whatif.what_if(ran, "fair_share")
    was, would = found["results"]
    assert (was["policy"], would["policy"]) == ("as it ran", "fair_share")
    assert was["figures"]["mean_completion"] == pytest.approx(105.0)
    assert would["figures"]["completed"] == 2
    assert any("job-c" in note and "left out" in note for note in found["notes"])
    assert any("fair_share" in note and "never measured" in note for note in found["notes"])


def test_a_replay_changes_nothing(ran: LedgerControl) -> None:
    before = (ran.snapshot(), ran.jobs())
    whatif.what_if(ran, "elastic_batch")
    assert (ran.snapshot(), ran.jobs()) == before


def test_the_policy_of_a_what_if_first_sees_what_the_ledger_shows_it(
    ran: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that runs, one that waits and one that is paused: service, money and their past included."""
    ran.submit("runs", a_spec(budget=100.0, priority=2), FACTS)
    life = Life(ran, ran.trainer, "runs")
    ran.acquire(life.segment_id())
    order = life.start()
    clock.advance(40.0)
    ran.trainer(order.token).observe([an_observation(100, order)])
    for job_id in ("waits", "paused"):
        ran.submit(job_id, a_spec(), FACTS)
        ran.acquire(Life(ran, ran.trainer, job_id).segment_id())
    ran.pause("paused", "later")
    clock.advance(5.0)

    class Watched(FairShare):
        seen: ClassVar[list[Snapshot]] = []

        def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
            self.seen.append(snapshot)
            return super().decide(snapshot, rng)

    monkeypatch.setattr(registry, "get", lambda name: Watched())
    production, _ = without_paused(ran.snapshot())
    projection.course(ran.snapshot(), ran.policy().policy)
    (first, *_) = Watched.seen
    assert next(job for job in production.jobs if job.job_id == "runs").attained_slot_seconds > 0
    for part in fields(Snapshot):
        assert getattr(first, part.name) == getattr(production, part.name), part.name


@pytest.mark.nightly
def test_it_is_kept_within_bounds(ran: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="jobs is 101; it takes 1 to 100"):
        whatif.what_if(ran, "fixed", jobs=101)
    monkeypatch.setattr(whatif, "MAX_DECISIONS", 1)
    assert not whatif.what_if(ran, "fixed")["complete"]


@pytest.mark.nightly
def test_one_question_at_a_time(ran: LedgerControl) -> None:
    with whatif.one_at_a_time(), pytest.raises(Conflict, match="another what-if"):
        whatif.what_if(ran, "fixed")
    whatif.what_if(ran, "fixed")


def test_an_empty_ledger_says_so(control: LedgerControl) -> None:
    with pytest.raises(UserError, match="holds no jobs yet"):
        whatif.what_if(control, "fixed")


def test_the_route_is_behind_the_users_login(ran: LedgerControl) -> None:
    def reader(x_user: str = Header(default="")) -> None:
        if x_user != "reader":
            raise HTTPException(401)

    app: FastAPI = create_app(ran, service_secret=CONTROL_SECRET, user_reads=reader, user_writes=reader)
    with served(app) as url, httpx.Client(base_url=url, timeout=240) as client:
        assert client.get("/ui/whatif", params={"policy": "fixed"}).status_code == 401
        answer = client.get("/ui/whatif", params={"policy": "fixed"}, headers={"x-user": "reader"})
        assert [result["policy"] for result in answer.json()["results"]] == ["as it ran", "fixed"]
        wrong = client.get("/ui/whatif", params={"policy": "fixd"}, headers={"x-user": "reader"})
        assert wrong.status_code == 422
        assert "Did you mean 'fixed'?" in wrong.text


def test_from_the_command_line(
    ran: LedgerControl, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, secret in (("control", CONTROL_SECRET), ("trainer", TRAINER_SECRET), ("ledger_url", ledger_url.encode())):
        (secrets / name).write_bytes(secret)
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    done = CliRunner().invoke(build(), ["simulate", "--from-ledger", "--policy", "fixed", "--json"])
    assert done.exit_code == 0, done.output
    found: Any = json.loads(done.stdout)
    assert [result["policy"] for result in found["results"]] == ["as it ran", "fixed"]
    assert found["cluster"] == [
        {"name": "node-a", "type": "cpu", "slots": 2}, {"name": "node-b", "type": "cpu", "slots": 2},
    ]  # fmt: skip
