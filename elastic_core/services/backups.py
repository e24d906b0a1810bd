"""Back-ups of an installation with the embedded PostgreSQL, made while it runs, and restored into a fresh home.

A back-up is a folder: a dump of each database by PostgreSQL's own tools, the checkpoints that the ledger names,
MLflow's artifacts, the secrets if that is asked for, and last `backup.json`, without which it is none. What fits to
what:

- Airflow's database is dumped before the ledger: runs that it lacks are started by reconciliation. Airflow cannot read
  it without its key, so without the secrets it is not restored, and all runs are started so.
- The ledger is dumped in one snapshot with the list of its checkpoints, and all of these are in the back-up. They never
  change, so they are copied after the dump; where retention has deleted one by then, ledger and copy are made again.
- MLflow comes last: what it shows already and the ledger's reader has yet to show is shown once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from elastic_core.control.ledger import migrations
from elastic_core.errors import CorruptCheckpoint, InfrastructureError, UserError
from elastic_core.host.secret_files import write_secret
from elastic_core.host.worker_user.deep_folders import files_below
from elastic_core.host.worker_user.foreign_files import ForeignFile, by_descriptor, is_regular, opened_below
from elastic_core.services import stack as services
from elastic_core.services.platform import RESTORING, prepare_home
from elastic_core.services.postgres import EmbeddedPostgres, binary
from elastic_core.services.secrets import read_secret
from elastic_core.services.stack import Tell
from elastic_core.services.supervision.program import Stack, Stage
from elastic_core.settings import Settings
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.local_store import is_temporary
from elastic_core.state.stores.store_urls import open_store

CONTENTS = "backup.json"
VERSION = 1
TRIES = 4
NEW_EPOCHS = """
    SELECT setval('lease_epoch', greatest(last_value + 1000000, (extract(epoch FROM now()) * 1000)::bigint))
    FROM lease_epoch
"""
_PARTIAL = re.compile(r"\..+\.partial")  # what `_copy` was writing
_STORE = "store"  # the folder of checkpoints in a back-up, where they are in it
_URLS = ("airflow_db_url", "ledger_url", "mlflow_db_url")  # secrets that a new home has to make for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What `backup.json` says. `databases`: SHA-256 of each dump by role. `store`: the folder's name in the back-up, or
    the address of a bucket, which is not in it. `missing`: checkpoints that the ledger names and the store lacks."""

    version: int
    made_at: float
    revision: str
    databases: dict[str, str]
    store: str
    checkpoints: int
    missing: tuple[str, ...]
    secrets: bool


def back_up(settings: Settings, folder: Path, *, secrets: bool, tell: Tell) -> Backup:
    """Write a back-up of the running installation into `folder`, which must not exist or be empty.

    Raises `UserError` where it is neither, or where the ledger is in a PostgreSQL of the user's own.
    """
    if settings.ledger_url:
        raise UserError(
            "the ledger is in a PostgreSQL of your own (ELASTIC_LEDGER_URL): back it up by its own means, and then the "
            f"store {settings.store_url()}, in this order"
        )
    _require_empty(folder, "give the back-up a folder of its own")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    server, made_at = EmbeddedPostgres(settings), time.time()
    databases = {}
    if not settings.airflow_db_url:
        databases["airflow"] = _dump(server, "airflow", folder, tell)
    revision, num_checkpoints, missing = _ledger_with_checkpoints(settings, server, folder, tell)
    databases["ledger"] = _sha256(folder / "ledger.dump")
    if not settings.mlflow_uri and not settings.mlflow_db_url:
        databases["mlflow"] = _dump(server, "mlflow", folder, tell)
    _copy(settings.home / "mlflow", folder / "mlflow")
    if secrets:
        _copy_secrets(settings.secret_file(""), folder / "secrets")
    backup = Backup(
        version=VERSION, made_at=made_at, revision=revision, databases=databases,
        store=settings.store if _in_bucket(settings) else _STORE, checkpoints=num_checkpoints, missing=missing,
        secrets=secrets,
    )  # fmt: skip
    (folder / CONTENTS).write_text(json.dumps(asdict(backup), indent=2))
    return backup


def restore(
    settings: Settings, folder: Path, environment: Mapping[str, str], tell: Tell, *, store_copied: bool = False
) -> Backup:
    """Make a home out of a back-up; `elastic up` starts it, and brings an older ledger up to date. `store_copied`: the
    checkpoints were copied to where the settings have the store.

    Raises `UserError` for what is no back-up, damaged or of a later release, for a home that is in use, and for a store
    that does not have the checkpoints.
    """
    backup = _read(folder)
    if not store_copied:
        _require_its_store(settings, folder, backup)
    server = EmbeddedPostgres(settings)
    if settings.ledger_url:
        raise UserError(
            "ELASTIC_LEDGER_URL names a PostgreSQL of your own: a back-up is restored into the embedded one"
        )
    for used in (server.data, settings.secret_file(""), settings.home / "mlflow"):
        _require_empty(used, "a back-up is restored into a home of its own: set ELASTIC_HOME to a new folder")
    copies_store = not _in_bucket(settings) and not store_copied
    if copies_store:
        _require_empty(Path(settings.store_url()), "checkpoints are restored into a store of their own")
    settings.home.mkdir(parents=True, exist_ok=True)
    (settings.home / RESTORING).write_text(str(folder))
    if (folder / "secrets").exists():  # backed up, or laid there again by whoever kept them elsewhere
        _copy_secrets(folder / "secrets", settings.secret_file(""))
    prepare_home(settings, restoring=True)
    if copies_store:
        tell("copying checkpoints")
        _copy(folder / _STORE, Path(settings.store_url()))
    _copy(folder / "mlflow", settings.home / "mlflow")
    stage = Stage(programs=(server.program(),), prepare=server.initialise, wait=True)
    database = Stack(home=settings.home, stages=(stage,))
    services.up(database, settings.host, environment, wait_seconds=120.0, tell=tell)
    try:
        server.ensure_databases()
        for role in backup.databases:
            if role == "airflow" and not (folder / "secrets" / "fernet").exists():
                tell(f"Airflow begins anew: its database can only be read with secrets/fernet, and {folder} lacks it")
                continue
            tell(f"restoring the database {role}")
            options = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-acl", f"--dbname={role}")
            _run(server, role, "pg_restore", *options, str(folder / f"{role}.dump"))
        if "ledger" in backup.databases:
            _begin_new_epochs(server)
    finally:
        services.down(database, tell)
    (settings.home / RESTORING).unlink()
    return backup


def _begin_new_epochs(server: EmbeddedPostgres) -> None:
    """Leases of the restored ledger have epochs that no ledger before it gave: processes of the installation that was
    backed up, which may live on (nodes of a Ray cluster, agents), have the same secrets, segments and run dirs.

    They go on from the milliseconds of now, ahead of all before: no ledger gives a thousand a second, whether it
    began at 1 or was itself restored, from this back-up or another.
    """
    with closing(server.connect("ledger", "ledger")) as connection, connection.cursor() as cursor:
        cursor.execute(NEW_EPOCHS)
        connection.commit()


def _read(folder: Path) -> Backup:
    path = folder / CONTENTS
    if not path.exists():
        raise UserError(f"{folder} holds no {CONTENTS}: it is no back-up, or one that was not completed")
    try:
        content = json.loads(path.read_text())
        version = content["version"]
        if version != VERSION:
            raise UserError(f"the back-up {folder} has version {version}; this release reads {VERSION}")
        backup = TypeAdapter(Backup).validate_python(content)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is none of ours: {error}") from error
    migrations.require_known(backup.revision)
    for role, digest in backup.databases.items():
        dump = folder / f"{role}.dump"
        if not dump.exists() or _sha256(dump) != digest:
            raise UserError(f"{dump} is not what was backed up (SHA-256 {digest}): restore another back-up")
    return backup


def _require_its_store(settings: Settings, folder: Path, backup: Backup) -> None:
    """Jobs of the back-up go on from checkpoints: raises `UserError` where the store of `settings` has none of them."""
    store, own = settings.store_url(), backup.store == _STORE
    if own and not _in_bucket(settings):
        return  # they are copied
    if not own and backup.store.rstrip("/") == store.rstrip("/"):
        return
    where, way_out = backup.store, f"set ELASTIC_STORE={backup.store}"
    if own:
        where, way_out = str(folder / _STORE), "unset ELASTIC_STORE"
    raise UserError(
        f"the checkpoints of the back-up are in {where}, and the store of this installation is {store}, where jobs "
        f"would not find them: {way_out}, or copy them to {store} yourself and say so with --store-copied"
    )


def _ledger_with_checkpoints(
    settings: Settings, server: EmbeddedPostgres, folder: Path, tell: Tell
) -> tuple[str, int, tuple[str, ...]]:
    """Dump the ledger and copy the checkpoints that the dump names: its revision, how many, and which are not there."""
    for _ in range(TRIES):
        with _snapshot(server) as (snapshot, revision, checkpoints):
            _dump(server, "ledger", folder, tell, f"--snapshot={snapshot}")
        if _in_bucket(settings):
            tell(f"checkpoints are in {settings.store}, which is backed up by its own means")
            return revision, 0, ()
        tell(f"copying {len(checkpoints)} checkpoints")
        _copy(Path(settings.store_url()), folder / _STORE)
        missing = _missing(folder / _STORE, checkpoints)
        if not missing:
            break
    for uri in missing:
        tell(f"the store lacks {uri}, or has it damaged; its job goes on from the one before")
    return revision, len(checkpoints) - len(missing), missing


@contextmanager
def _snapshot(server: EmbeddedPostgres) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """A name under which pg_dump sees what is seen here: the ledger's revision, uri and manifest's SHA-256 of each
    checkpoint that is kept."""
    connection = server.connect("ledger", "ledger")
    try:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = connection.cursor()
        cursor.execute("SELECT pg_export_snapshot(), to_regclass('alembic_version')")
        snapshot, table = cursor.fetchone()
        if table is None:
            raise UserError("there is no ledger to back up yet: `elastic up` makes it")
        cursor.execute("SELECT version_num FROM alembic_version")
        (revision,) = cursor.fetchone()
        cursor.execute("SELECT uri, manifest_sha256 FROM checkpoints WHERE swept_at IS NULL AND NOT bad ORDER BY id")
        yield snapshot, revision, cursor.fetchall()
    finally:
        connection.close()


def _missing(store_folder: Path, checkpoints: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    store = open_store(str(store_folder))

    def whole(uri: str, digest: str) -> bool:
        try:
            manifest = read_manifest(store, uri, digest)
            return all(store.size(f"{uri}/{file.name}") == file.size for file in manifest.files.values())
        except (CorruptCheckpoint, UserError):  # of an older ledger, whose uris may be what no store takes
            return False

    return tuple(uri for uri, digest in checkpoints if not whole(uri, digest))


def _copy(source: Path, target: Path) -> None:
    """Files that are not there yet, but those that the store, or a copy before, had half written. What goes away
    meanwhile was deleted."""
    target.mkdir(parents=True, exist_ok=True)
    root = os.path.realpath(source)
    for path in files_below(source):
        copied = target / path.relative_to(source)
        half_written = is_temporary(path.name) or _PARTIAL.fullmatch(path.name)
        if half_written or path.is_symlink() or copied.exists():
            continue
        copied.parent.mkdir(parents=True, exist_ok=True)
        partial = copied.with_name(f".{path.name}.partial")
        try:
            with opened_below(root, path) as opened:  # jobs may put links and pipes in a file's place meanwhile
                if not is_regular(opened):
                    continue
                shutil.copy2(by_descriptor(opened), partial)
        except (FileNotFoundError, ForeignFile):
            partial.unlink(missing_ok=True)
            continue
        os.replace(partial, copied)


def _copy_secrets(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    os.chmod(target, 0o700)
    for path in source.iterdir():
        if path.is_file() and path.name not in _URLS and not path.name.startswith("."):
            write_secret(target / path.name, path.read_text())


def _dump(server: EmbeddedPostgres, role: str, folder: Path, tell: Tell, *options: str) -> str:
    """The dump's SHA-256."""
    tell(f"dumping the database {role}")
    path = folder / f"{role}.dump"
    _run(server, role, "pg_dump", "--format=custom", f"--file={path}", *options, role)
    return _sha256(path)


def _run(server: EmbeddedPostgres, role: str, program: str, *arguments: str) -> None:
    """One of PostgreSQL's programs as a database's user; the password reaches it by a file."""
    with tempfile.NamedTemporaryFile("w", prefix="elastic-pgpass-") as password:
        password.write(f"*:*:*:{role}:{read_secret(server.settings, f'postgres_{role}')}\n")
        password.flush()
        environment = {**os.environ, "PGPASSFILE": password.name}
        command = [str(binary(program)), f"--host={server.socket_folder()}", f"--username={role}", "--no-password"]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise InfrastructureError(f"{program} of the database {role} failed: {done.stderr.strip()}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_bucket(settings: Settings) -> bool:
    return settings.store_url().startswith("s3://")


def _require_empty(folder: Path, way_out: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder; {way_out}")
