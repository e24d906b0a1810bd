"""Ledgers and checkpoints of earlier releases, made by those releases' own code (`freeze.py`), open in this one.

One is of the newest revision, so that the next one is held to it: who adds a migration has `freeze.py` write another.
Checkpoints of all of them have format version 1, the only one that there has been.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from elastic_core.control.ledger import migrations
from elastic_core.control.ledger.database import Ledger
from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState, SegmentState
from elastic_core.errors import UserError
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import ExitKind, ExitReport, LaunchOrder
from elastic_core.services.platform import migrate_ledger
from elastic_core.settings import Settings
from elastic_core.state.format.checkpoint_format import verify
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.audit import prove
from tests.control.ledger.freeze import ROWS, SAMPLES, TASKS, a_control
from tests.effort import sample
from tests.train import forked

FROZEN = Path(__file__).parent / "frozen"
PROJECT = Path(__file__).parents[3]
REVISIONS = sorted(folder.name.removeprefix("r") for folder in FROZEN.iterdir())
FORECASTS_SINCE = "0006"
each_revision = pytest.mark.parametrize("revision", sample(REVISIONS, REVISIONS[0], REVISIONS[-1]))


def test_the_newest_revision_is_frozen_too() -> None:
    newest = migrations.newest()
    assert newest in REVISIONS, (
        f"no ledger of revision {newest} is kept, so that nothing holds the next one to it: run "
        f"`python tests/control/ledger/freeze.py tests/control/ledger/frozen/r{newest}`, and keep the older ones"
    )


@pytest.fixture
def older(postgres_url: str, tmp_path: Path, revision: str) -> str:
    """URL of a database with that release's ledger; its store lies in `tmp_path / "store"`."""
    with gzip.open(FROZEN / f"r{revision}" / "ledger.sql.gz", "rt") as file:
        statements = file.read()
    engine = create_engine(postgres_url, poolclass=NullPool)  # the dump changes its connection's search path
    connection = engine.raw_connection()
    connection.cursor().execute(statements)
    connection.commit()
    connection.close()
    assert migrations.current(engine) == revision
    engine.dispose()
    shutil.copytree(FROZEN / f"r{revision}" / "store", tmp_path / "store")
    return postgres_url


@pytest.fixture
def upgraded(older: str, tmp_path: Path) -> Iterator[LedgerControl]:
    migrations.upgrade(older)
    control = a_control(older, tmp_path)
    yield control
    control.close()


def settings_of(url: str, home: Path) -> Settings:
    """Of an installation whose `elastic up` has written the ledger's address down."""
    settings = Settings(home=home)
    settings.secret_file("").mkdir()
    settings.secret_file("ledger_url").write_text(url)
    return settings


@each_revision
def test_before_the_upgrade_it_is_not_worked_on_and_the_way_is_said(older: str, tmp_path: Path, revision: str) -> None:
    ledger = Ledger(older, Settings(home=tmp_path), lambda: 0.0)
    if revision == migrations.newest():
        ledger.check()
    else:
        with pytest.raises(Exception, match=rf"is at revision {revision}, this program needs .* `elastic up`"):
            ledger.check()
    ledger.close()


@each_revision
def test_up_upgrades_it_by_itself(older: str, tmp_path: Path) -> None:
    migrate_ledger(settings_of(older, tmp_path))
    ledger = Ledger(older, Settings(home=tmp_path), lambda: 0.0)
    ledger.check()
    ledger.close()


@each_revision
def test_up_refuses_one_of_a_later_release_and_leaves_it_as_it_is(older: str, tmp_path: Path) -> None:
    engine = create_engine(older)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    words = r"revision 9999, which is not of this release: it knows 0001 to .* install that release again, or restore"
    with pytest.raises(UserError, match=words):
        migrate_ledger(settings_of(older, tmp_path))
    ledger = Ledger(older, Settings(home=tmp_path), lambda: 0.0)
    with pytest.raises(UserError, match=words):
        ledger.check()
    ledger.close()
    assert migrations.current(engine) == "9999"
    engine.dispose()


@each_revision
def test_what_was_is_read_as_it_was(upgraded: LedgerControl, tmp_path: Path, revision: str) -> None:
    jobs = {job.job_id: job for job in upgraded.jobs()}
    assert {name: job.state for name, job in jobs.items()} == {
        "finished": JobState.FINISHED, "half": JobState.ACTIVE, "waiting": JobState.ACTIVE,
    }  # fmt: skip
    assert jobs["finished"].done_samples == SAMPLES
    assert 0 < jobs["half"].done_samples < SAMPLES
    assert [segment.state for segment in upgraded.segments("half")] == [SegmentState.COMMITTED, SegmentState.CREATED]
    (checkpoint,) = upgraded.checkpoints("half")
    store = open_store(str(tmp_path / "store"))
    assert verify(store, checkpoint.uri, checkpoint.manifest_sha256).num_files == 1
    assert [run.work for run in upgraded.finished_runs(10) if run.completed] == [SAMPLES]
    assert [job.job_id for job in upgraded.history(10)] == ["finished", "half", "waiting"]
    assert upgraded.last_plan() is not None
    assert bool(upgraded.forecasts("half")) == (revision >= FORECASTS_SINCE)
    assert upgraded.explain("half").reason
    assert upgraded.feed.events(0, 1000)


def work(run_dir: str, url: str, home: str) -> int:
    from elastic_core.train.process.worker import main

    os.chdir(PROJECT)
    control = a_control(url, Path(home))
    return main(["--run-dir", run_dir, "--rank", "0"], connect=control.trainer, standalone=True)


def train(control: LedgerControl, job_id: str, url: str, home: Path) -> LaunchOrder:
    """One attempt of a job, in a process as this release has them."""
    order = control.launch_order(control.acquire(control.job(job_id).segment_id).segment_id)
    run_dir = RunDir(home / "run" / str(order.epoch))
    run_dir.create()
    run_dir.write_order(order)
    settings = {"project": str(PROJECT), "tasks": TASKS, "store": str(home / "store"), "s3_endpoint": ""}
    run_dir.write_json("settings.json", settings)
    process = forked.start(work, str(run_dir.path), url, str(home), log=run_dir.log(0))
    assert forked.join([process], 300) == [0], run_dir.log(0).read_text()
    control.process_group_gone(order.origin_epoch, ExitReport(kind=ExitKind.FINISHED))
    return order


@each_revision
def test_its_jobs_go_on_and_read_every_sample_once(upgraded: LedgerControl, older: str, tmp_path: Path) -> None:
    before = upgraded.job("half")
    for job_id in ("half", "waiting"):
        order = train(upgraded, job_id, older, tmp_path)
        assert bool(order.restore.candidates) == (job_id == "half")
        job = upgraded.job(job_id)
        assert (job.state, job.error, job.done_samples) == (JobState.FINISHED, None, SAMPLES)
        verdicts = prove(upgraded.reads(job_id), ROWS, open_store(str(tmp_path / "store")))
        assert [(verdict.proven, verdict.every_index, verdict.count) for verdict in verdicts] == [
            (True, True, ROWS)
        ] * 3
    assert upgraded.segments("half")[1].start_step == before.step


@pytest.mark.parametrize("revision", ["0022"])
def test_a_driver_that_was_noted_without_a_name_is_none(older: str) -> None:
    noted = {"finished": '{"airflow": {"ended": true}, "x": 1}', "half": '{"airflow": {"dag_id": "d", "ended": true}}'}
    engine = create_engine(older, poolclass=NullPool)
    with engine.begin() as connection:
        for job_id, results in noted.items():
            values = {"job": job_id, "results": results}
            connection.execute(text("UPDATE jobs SET results = CAST(:results AS jsonb) WHERE id = :job"), values)
    migrations.upgrade(older)
    with engine.begin() as connection:
        rows = connection.execute(text("SELECT id, results FROM jobs WHERE id <> 'waiting'")).all()
    kept = {row.id: row.results for row in rows}
    assert kept == {"finished": {"x": 1}, "half": {"airflow": {"dag_id": "d", "ended": True}}}
    engine.dispose()
