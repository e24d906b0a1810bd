"""Back-ups of an installation whose PostgreSQL is the real one, with a ledger and a checkpoint that training made."""

from __future__ import annotations

import gzip
import json
import shutil
import stat
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.services import backups
from elastic_core.services.platform import migrate_ledger, prepare_home
from elastic_core.services.postgres import EmbeddedPostgres, database_urls
from elastic_core.services.secrets import read_secret
from elastic_core.settings import Settings
from tests.control.ledger.freeze import a_control
from tests.host.worker_user.nesting import nested
from tests.services.test_postgres import postgres_stack
from tests.services.test_stack import down, up

FROZEN = Path(__file__).parents[1] / "control" / "ledger" / "frozen" / "r0009"
SHARDS = "half/lineage-0/*/shard-0.safetensors"


def execute(url: str, statements: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    connection = engine.raw_connection()
    connection.cursor().execute(statements)
    connection.commit()
    connection.close()


@pytest.fixture
def installation(home: Path) -> Iterator[Settings]:
    """Its PostgreSQL runs; the ledger is the one before this release's, with a job half way."""
    home.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    settings = Settings(home=home / "first")
    server, stack = postgres_stack(settings)
    up(stack)
    server.ensure_databases()
    database_urls(settings, server)
    execute(server.url("ledger"), gzip.decompress((FROZEN / "ledger.sql.gz").read_bytes()).decode())
    for role in ("airflow", "mlflow"):
        execute(server.url(role), f"CREATE TABLE history AS SELECT '{role}' AS of")
    execute(server.url("ledger"), "UPDATE checkpoints SET swept_at = 0 WHERE job_id = 'finished'")
    shutil.copytree(FROZEN / "store", settings.home / "store")
    (settings.home / "mlflow" / "1").mkdir(parents=True)
    for name, content in (("model.txt", "weights"), (".hidden", "kept"), (f".model.txt.{'0a' * 8}.tmp", "wei")):
        (settings.home / "mlflow" / "1" / name).write_text(content)
    yield settings
    down(stack)


def tell(line: str) -> None:
    print(line)


def history(server: EmbeddedPostgres, role: str) -> str | None:
    """What the fixture wrote into that database; None where it is empty."""
    with create_engine(server.url(role), poolclass=NullPool).connect() as connection:
        if connection.execute(text("SELECT to_regclass('history')")).scalar() is None:
            return None
        return str(connection.execute(text("SELECT of FROM history")).scalar())


def next_epoch(server: EmbeddedPostgres) -> int:
    """Of the next lease that the ledger opens."""
    with create_engine(server.url("ledger"), poolclass=NullPool).connect() as connection:
        return int(connection.execute(text("SELECT nextval('lease_epoch')")).scalar_one())


def modes(folder: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*") if path.is_file()}


def test_a_backup_of_a_running_installation_becomes_a_home_of_this_release(installation: Settings, home: Path) -> None:
    folder, settings = home / "backup", Settings(home=home / "second")
    made = backups.back_up(installation, folder, secrets=False, tell=tell)
    assert (made.revision, made.checkpoints, made.missing) == ("0009", 1, ())
    assert not (folder / "secrets").exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    shutil.rmtree(installation.home / "store")
    assert backups.restore(settings, folder, {}, tell) == made
    server, stack = postgres_stack(settings)
    try:
        up(stack)
        server.ensure_databases()
        database_urls(settings, server)
        migrate_ledger(settings)
        control = a_control(server.url("ledger"), settings.home)
        assert abs(next_epoch(server) / 1000 - time.time()) < 3600, "ahead of all that the old one gives on"
        assert {job.job_id: job.done_samples for job in control.jobs()} == {"finished": 120, "half": 56, "waiting": 0}
        control.close()
        assert history(server, "mlflow") == "mlflow"
        assert history(server, "airflow") is None, "it cannot be read without the key"
    finally:
        down(stack)
    stored = [path.relative_to(FROZEN / "store") for path in (FROZEN / "store").rglob("*") if path.is_file()]
    assert all(
        (settings.home / "store" / name).read_bytes() == (FROZEN / "store" / name).read_bytes() for name in stored
    )
    artifacts = {path.name: path.read_text() for path in (settings.home / "mlflow" / "1").iterdir()}
    assert artifacts == {"model.txt": "weights", ".hidden": "kept"}
    assert read_secret(settings, "control") != read_secret(installation, "control")


@pytest.mark.nightly
def test_secrets_are_in_it_when_that_is_asked_for_and_for_nobody_else_to_read(
    installation: Settings, home: Path
) -> None:
    folder, settings = home / "backup", Settings(home=home / "second")
    backups.back_up(installation, folder, secrets=True, tell=tell)
    assert modes(folder / "secrets") == {"0o600"}
    assert not (folder / "secrets" / "ledger_url").exists()
    backups.restore(settings, folder, {}, tell)
    assert modes(settings.secret_file("")) == {"0o600"}
    for name in ("fernet", "control", "mlflow"):
        assert read_secret(settings, name) == read_secret(installation, name)
    server, stack = postgres_stack(settings)
    try:
        up(stack)
        assert history(server, "airflow") == "airflow"
    finally:
        down(stack)


@pytest.mark.nightly
def test_a_checkpoint_that_the_store_lacks_is_named(
    installation: Settings, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shard,) = (installation.home / "store").glob(SHARDS)
    shard.write_bytes(shard.read_bytes()[:-1])
    made = backups.back_up(installation, home / "backup", secrets=False, tell=tell)
    assert (made.checkpoints, made.missing) == (0, (str(shard.parent.relative_to(installation.home / "store")),))
    assert f"the store lacks {made.missing[0]}, or has it damaged" in capsys.readouterr().out


@pytest.mark.nightly
def test_retention_that_deletes_while_checkpoints_are_copied_makes_the_ledger_be_dumped_again(
    installation: Settings, home: Path
) -> None:
    """What is told comes between the dump and the copy: there the checkpoint is swept, as reconciliation does."""
    server = EmbeddedPostgres(installation)
    told: list[str] = []

    def sweep_once(line: str) -> None:
        told.append(line)
        if line == "copying 1 checkpoints":
            shutil.rmtree(installation.home / "store" / "half" / "lineage-0")
            execute(server.url("ledger"), "UPDATE checkpoints SET swept_at = 1")

    made = backups.back_up(installation, home / "backup", secrets=False, tell=sweep_once)
    assert told.count("dumping the database ledger") == 2
    assert (made.checkpoints, made.missing) == (0, ())


@pytest.mark.nightly
def test_what_is_no_sound_backup_of_a_known_release_is_refused_before_anything_is_made(
    installation: Settings, home: Path
) -> None:
    folder, settings = home / "backup", Settings(home=home / "second")
    backups.back_up(installation, folder, secrets=False, tell=tell)
    contents = json.loads((folder / "backup.json").read_text())

    def refused(words: str, **changes: object) -> None:
        (folder / "backup.json").write_text(json.dumps(contents | changes))
        with pytest.raises(UserError, match=words):
            backups.restore(settings, folder, {}, tell)
        assert not settings.home.exists()

    refused(f"has version 2; this release reads {backups.VERSION}", version=2)
    refused("revision 9999, which is not of this release", revision="9999")
    refused("ledger.dump is not what was backed up", databases={"ledger": "0" * 64})
    refused("is none of ours", checkpoints="many")
    with pytest.raises(UserError, match=r"holds no backup\.json: it is no back-up, or one that was not completed"):
        backups.restore(settings, home / "nothing", {}, tell)
    with pytest.raises(UserError, match="is not an empty folder; give the back-up a folder of its own"):
        backups.back_up(installation, folder, secrets=False, tell=tell)
    (folder / "backup.json").write_text(json.dumps(contents))
    with pytest.raises(UserError, match="is not an empty folder; a back-up is restored into a home of its own"):
        backups.restore(installation, folder, {}, tell)


@pytest.mark.nightly
def test_a_home_that_was_not_restored_to_the_end_does_not_start(installation: Settings, home: Path) -> None:
    folder, settings = home / "backup", Settings(home=home / "second")
    backups.back_up(installation, folder, secrets=False, tell=tell)
    broken = (folder / "ledger.dump").read_bytes()[:-2000]
    (folder / "ledger.dump").write_bytes(broken)
    contents = json.loads((folder / "backup.json").read_text())
    contents["databases"]["ledger"] = sha256(broken).hexdigest()
    (folder / "backup.json").write_text(json.dumps(contents))
    with pytest.raises(InfrastructureError, match="pg_restore of the database ledger failed"):
        backups.restore(settings, folder, {}, tell)
    with pytest.raises(
        UserError, match=r"was not restored to the end .* remove this folder .* `elastic restore` again"
    ):
        prepare_home(settings)


@pytest.mark.parametrize(
    ("of_backup", "of_installation", "way_out"),
    [
        ("store", "s3://new/x", "are in .*backup/store, and the store .* is s3://new/x, .*: unset ELASTIC_STORE, or"),
        ("s3://old/x", "", "are in s3://old/x, .* is .*/second/store, .*: set ELASTIC_STORE=s3://old/x, or copy them"),
        ("s3://old/x", "s3://new/x", "are in s3://old/x, and the store of this installation is s3://new/x, .*copied"),
    ],
)
def test_a_store_without_the_checkpoints_is_refused_before_anything_is_made_unless_they_were_copied_there(
    home: Path, of_backup: str, of_installation: str, way_out: str
) -> None:
    folder = a_backup_without_databases(home, of_backup)
    settings = Settings(home=home / "second", store=of_installation)
    with pytest.raises(UserError, match=way_out):
        backups.restore(settings, folder, {}, tell)
    assert not settings.home.exists()
    if not of_installation:
        (settings.home / "store" / "job").mkdir(parents=True)
    backups.restore(settings, folder, {}, tell, store_copied=True)
    assert (settings.home / "store" / "job").exists() == (not of_installation)


def test_a_bucket_is_the_backups_whatever_the_slash_at_its_end(home: Path) -> None:
    settings = Settings(home=home / "second", store="s3://old/x/")
    assert backups.restore(settings, a_backup_without_databases(home, "s3://old/x"), {}, tell).store == "s3://old/x"


def a_backup_without_databases(home: Path, store: str) -> Path:
    home.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    folder = home / "backup"
    (folder / "mlflow").mkdir(parents=True)
    contents = {"version": 1, "made_at": 1.0, "revision": "0009", "databases": {}, "store": store, "checkpoints": 0}
    (folder / "backup.json").write_text(json.dumps({**contents, "missing": [], "secrets": False}))
    return folder


def test_a_ledger_elsewhere_is_backed_up_by_its_own_means(home: Path) -> None:
    settings = Settings(home=home, ledger_url="postgresql+psycopg2://elsewhere/ledger")
    with pytest.raises(UserError, match=r"PostgreSQL of your own .* by its own means, and then the store"):
        backups.back_up(settings, home / "backup", secrets=False, tell=tell)


def test_folders_that_are_nested_deeper_than_python_recurses_keep_no_file_from_being_copied(tmp_path: Path) -> None:
    (tmp_path / "store" / "job").mkdir(parents=True)
    (tmp_path / "store" / "job" / "part").write_bytes(b"x")
    with nested(tmp_path / "store" / "deep"):
        backups._copy(tmp_path / "store", tmp_path / "backup")
    assert (tmp_path / "backup" / "job" / "part").read_bytes() == b"x"


def test_a_uri_that_no_store_takes_is_a_checkpoint_that_is_missing(tmp_path: Path) -> None:
    uris = ("job/.x/lineage-0/step-0000000001-epoch-1-a", "job/lineage-0/step-0000000001-epoch-1-a\\b")
    assert backups._missing(tmp_path, [(uri, "0" * 64) for uri in uris]) == uris
