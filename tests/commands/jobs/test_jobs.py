"""`elastic jobs ...` against a real control API."""

from __future__ import annotations

import getpass
import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from elastic_core import cli
from elastic_core.commands.jobs.jobs_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, to_json
from elastic_core.errors import NotFound, UserError
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.job_runs import JobRun
from elastic_core.spec import QueueSpec, parse_job_spec
from elastic_core.state.format.checkpoint_format import CheckpointHeader, write_manifest, write_shard
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.train.data.audit import Reads, fingerprint, to_fingerprints
from elastic_core.train.data.batches import DataPlan
from elastic_core.train.data.data_state import DataState
from tests.builders import (
    FACTS,
    FakeClock,
    FakeJobRuns,
    Life,
    a_cluster,
    a_commit,
    a_spec,
)


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def printed(*arguments: object) -> Any:
    done = elastic(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def a_file(folder: Path, **change: Any) -> Path:
    file = folder / "digits.json"
    file.write_text(json.dumps({**to_json(a_spec()), **change}))
    return file


def record(control: LedgerControl, runs: FakeJobRuns) -> None:
    """What the job's run does first, played as soon as it was asked for."""
    start = runs.start

    def recorded(name: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:
        started = start(name, conf, caller)
        control.submit(name, parse_job_spec(conf["spec"]), FACTS, conf["warm_start"])
        return started

    runs.start = recorded  # type: ignore[method-assign]


def test_what_a_job_prints_is_shown_from_its_end_or_whole(control: LedgerControl, tmp_path: Path) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    folder = RunDir.of(tmp_path, order.origin_epoch)
    folder.create()
    folder.log(0).write_text("one\ntwo\nthree\n")
    assert elastic("logs", "job-a", "--tail", "2").stdout.endswith("two\nthree\n")
    assert elastic("logs", "job-a", "--all").stdout.endswith("one\ntwo\nthree\n")
    refused = elastic("logs", "job-a", "--attempt", "2")
    assert "job job-a has no attempt 2; there are 1 to 1" in str(refused.exception)


def test_a_job_is_submitted_from_a_file_and_its_run_is_started_at_once(
    control: LedgerControl, runs: FakeJobRuns, tmp_path: Path
) -> None:
    record(control, runs)
    assert printed("submit", a_file(tmp_path), "--id", "job-a")["job_id"] == "job-a"
    assert "job-a: active, not started" in elastic("submit", a_file(tmp_path), "--id", "job-a").stdout
    assert printed("submit", a_file(tmp_path))["job_id"].startswith("digits-")
    assert len(printed("list")) == len(runs.runs) == 2
    assert control.job("job-a").spec == a_spec()


def test_who_does_not_wait_is_told_the_run_to_look_at(control: LedgerControl, tmp_path: Path) -> None:
    said = elastic("submit", a_file(tmp_path), "--id", "job-a", "--wait", 0)
    assert (said.exit_code, said.stdout) == (0, "job-a: starting, see run job-a of elastic_job\n")
    assert printed("submit", a_file(tmp_path), "--id", "job-a", "--wait", 0)["state"] == "starting"
    assert control.jobs() == []


def test_what_the_tasks_own_code_refuses_is_an_error_of_the_command(
    control: LedgerControl, runs: FakeJobRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.client.POLL_SECONDS", 0.01)
    looks: list[str] = []
    look = runs.look

    def refuses_in_a_while(job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        looks.append(job_id)
        if len(looks) == 4:
            runs.end(job_id, succeeded=False, refusal="params.widht: did you mean 'width'?")
        return look(job_id, results)

    monkeypatch.setattr(runs, "look", refuses_in_a_while)
    refused = elastic("submit", a_file(tmp_path), "--id", "job-a").exception
    assert isinstance(refused, UserError)
    assert str(refused) == "job 'job-a' was refused: params.widht: did you mean 'width'?"


def test_the_servers_entry_points_and_queues_count_not_this_shells(
    control: LedgerControl, runs: FakeJobRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_TASKS", "nothing_of_this_shell")
    assert elastic("submit", a_file(tmp_path), "--wait", 0).exit_code == 0
    monkeypatch.setenv("ELASTIC_TASKS", "os.*")
    control.set_cluster(a_cluster().model_copy(update={"queues": (QueueSpec(name="prod", guaranteed={"cpu": 1}),)}))
    for change, says in (
        ({"entry_point": "os.path:join"}, "matches none of the operator's patterns (examples.*)"),
        ({"queue": "prid"}, "the cluster has no queue 'prid'; did you mean 'prod'? It has prod; jobs of 'default'"),
    ):
        refused = elastic("submit", a_file(tmp_path, **change)).exception
        assert isinstance(refused, UserError)
        assert says in str(refused)
    assert len(runs.runs) == 1


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


def test_who_waits_is_shown_with_its_place_and_who_has_its_slots(control: LedgerControl) -> None:
    control.submit("a-holder", a_spec(slots=(4, 4)), FACTS)
    Life(control, control.trainer, "a-holder").start()
    control.submit("late", a_spec(slots=(2, 2)), FACTS)
    control.acquire("late__seg_0")
    needs = "needs 2 of 4 slots; held by a-holder (4); when it starts is not known: it is not forecast when enough"
    assert f"waits      1 of 1: {needs}" in elastic("show", "late").stdout
    (line,) = (line for line in elastic("list").stdout.splitlines() if line.startswith("late"))
    assert "1 of 1" in line
    assert "held by a-holder (4)" in line
    (told,) = (job for job in printed("list") if job["job_id"] == "late")
    assert (told["in_queue"]["place"], told["in_queue"]["held_by"][0]["job_id"]) == (1, "a-holder")


def test_an_exchange_that_is_not_the_exact_sum_is_shown(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(comm={"algorithm": "bytegrad"}), FACTS)
    control.submit("job-b", a_spec(), FACTS)
    control.submit("job-c", a_spec(comm={"algorithm": "auto", "allow": "lossy"}), FACTS)
    assert "exchange   auto (lossy): allreduce, until others have been tried" in elastic("show", "job-c").stdout
    assert "exchange   bytegrad (lossy)" in elastic("show", "job-a").stdout
    assert "exchange" not in elastic("show", "job-b").stdout


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


def test_many_jobs_are_cancelled_after_saying_how_many(control: LedgerControl) -> None:
    team = QueueSpec(name="prod", guaranteed={"cpu": 1}, owners=("olga",))
    control.set_cluster(a_cluster().model_copy(update={"queues": (team,)}))
    ann = Caller(name="ann", way=Way.REST)
    for job_id in ("a", "b"):
        control.acting(ann).submit(job_id, a_spec(), FACTS)
    for job_id in ("c", "d"):
        control.submit(job_id, a_spec(queue="prod"), FACTS)
    refused = CliRunner().invoke(app, ["cancel", "--all"], input="n\n", env={"COLUMNS": "200"})
    assert (refused.exit_code, "Cancel 4 jobs?" in refused.stderr) == (1, True)
    assert len(control.jobs(active_only=True)) == 4
    assert [one["job_id"] for one in printed("cancel", "--user", "ann", "--yes")] == ["a", "b"]
    assert [one["job_id"] for one in printed("cancel", "--queue", "prod", "--user", "ann", "--yes")] == []
    as_ann = elastic("cancel", "c", "d", "--yes", "--as", "ann")
    assert (as_ann.exit_code, "the queue is of olga" in as_ann.stdout.replace("\n", " ")) == (1, True)
    assert [one["state"] for one in printed("cancel", "--queue", "prod", "--yes")] == ["cancelled"] * 2
    for wrong in (("cancel",), ("cancel", "a", "--all")):
        assert isinstance(raised := elastic(*wrong).exception, UserError)
        assert "name jobs, or choose active ones with" in str(raised)


def test_the_command_acts_for_the_operator_or_for_a_user_and_both_are_on_record(
    control: LedgerControl, runs: FakeJobRuns, tmp_path: Path
) -> None:
    elastic("submit", a_file(tmp_path), "--id", "job-a", "--wait", 0, "--as", "ann")
    elastic("submit", a_file(tmp_path), "--id", "job-b", "--wait", 0)
    assert [(caller.name, caller.unrestricted) for caller in runs.started_for.values() if caller] == [
        ("ann", False), (f"{getpass.getuser()}@host", True)
    ]  # fmt: skip
    ann = Caller(name="ann", way=Way.AIRFLOW)
    control.acting(ann).submit("job-a", a_spec(), FACTS)
    elastic("cancel", "job-a", "--reason", "enough")
    shown = elastic("show", "job-a").stdout
    assert "by ann" in shown
    assert "ann: submit (cli)" in shown
    assert "cancel (cli), enough" in shown
    records = json.loads(CliRunner().invoke(cli.build(), ["audit", "--job", "job-a", "--json"]).stdout)
    assert [(record["actor"], record["action"]) for record in records] == [
        (f"{getpass.getuser()}@host", "cancel"), ("ann", "submit")
    ]  # fmt: skip
    listed = CliRunner().invoke(cli.build(), ["audit", "--user", "ann"], env={"COLUMNS": "200"}).stdout
    assert ("submit" in listed, "cancel" in listed) == (True, False)


def test_a_decision_is_replayed(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    number = control.explain("job-a").decision_id
    assert printed("replay", number)["same"] is True
    assert "the same" in elastic("replay", number).stdout
    assert isinstance(elastic("replay", 999).exception, NotFound)


PROGRESS = {"work": {"samples": 10_000, "measure": "progress", "max_samples": 50_000}}


def test_a_job_of_progress_shows_passes_read_predicted_and_declared(control: LedgerControl) -> None:
    control.submit("job-a", a_spec(**PROGRESS), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    gain = order.allocation.global_batch / 16 / 2  # a sample is worth half of one at the base batch
    commit = a_commit(order, 150, progress=750.0, gain=gain)
    control.trainer(order.token).commit(commit)
    shown = elastic("show", "job-a").stdout
    assert "750 of 10000 samples at batch 16 (8%), step 150" in shown
    assert "1500 samples in 1.5 passes; 20.0 are predicted for the 10.0 at the base batch" in shown
    assert f"gain {gain:.2f}, at most 50000 samples" in shown
    assert "read  " not in elastic("show", "job-b").stdout


def test_an_audit_proves_a_prefix_and_exits_with_1_for_anything_else(control: LedgerControl, tmp_path: Path) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    plan = DataPlan(0, FACTS.dataset_samples, 10_000, None)
    store = LocalStore(tmp_path / "other-store")

    def commit(step: int, read: Any) -> None:
        reads = to_fingerprints(Reads((fingerprint(0, read),)))
        made = a_commit(order, step, fingerprints=reads)
        header = CheckpointHeader(
            job_id="job-a", step=step, samples=step * 10, lineage=0, segment_id=order.segment_id, epoch=order.epoch,
            layout=made.layout, written_at=0.0,
        )  # fmt: skip
        shard = write_shard(store, made.uri, 0, {"w": torch.zeros(2)})
        write_manifest(store, made.uri, [shard], header, DataState.of(plan, 10, 0, 0).to_scalars())
        control.trainer(order.token).commit(made)

    commit(3, plan.batch(0, 30, 0, 30))
    (proven,) = printed("audit", "job-a", "--store", store_url := str(tmp_path / "other-store"))
    assert (proven["count"], proven["expected"], proven["proven"]) == (30, 1000, True)
    assert "30 of 1000" in elastic("audit", "job-a", "--store", store_url).stdout

    commit(6, plan.batch(0, 30, 0, 30))  # once more, in the place of the next
    refuted = elastic("audit", "job-a", "--store", store_url)
    assert refuted.exit_code == 1
    assert "not the first of the data order" in refuted.stdout.replace("\n", " ")


def test_a_job_is_shown_with_its_deadline_and_whether_it_is_at_risk(control: LedgerControl, clock: FakeClock) -> None:
    now = time.time()
    clock.now = now
    for job_id, seconds in (("late", -3600.0), ("in-time", 3600.0)):
        deadline = datetime.fromtimestamp(now + seconds, UTC).isoformat()
        control.submit(job_id, a_spec(deadline=deadline), FACTS)
    lines = {job_id: elastic("show", job_id).stdout.splitlines() for job_id in ("late", "in-time")}
    (late,), (in_time,) = ([line for line in shown if line.startswith("deadline")] for shown in lines.values())
    assert re.search(r"ago; at risk: its deadline passed (60 min|1 h 0\d min) ago$", late)
    assert re.search(r", in (59|60) min$", in_time)
