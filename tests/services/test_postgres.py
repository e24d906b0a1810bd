"""The embedded PostgreSQL under the real supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from elastic_core.errors import UserError
from elastic_core.services.postgres import EmbeddedPostgres, database_urls, network_rules
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.services.supervision.marks import of_home
from elastic_core.services.supervision.program import Stack, Stage
from elastic_core.services.supervision.supervise import Supervisor
from elastic_core.settings import Settings
from tests.services.test_stack import down, eventually, up


def postgres_stack(settings: Settings) -> tuple[EmbeddedPostgres, Stack]:
    ensure_secrets(settings)
    server = EmbeddedPostgres(settings)
    stage = Stage(programs=(server.program(),), prepare=server.initialise, wait=True)
    return server, Stack(home=settings.home, stages=(stage,))


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


def test_each_user_has_its_own_database_and_no_other(settings: Settings) -> None:
    server, stack = postgres_stack(settings)
    up(stack)
    server.ensure_databases()
    database_urls(settings, server)
    with create_engine(read_secret(settings, "ledger_url")).connect() as connection:
        assert connection.execute(text("SELECT current_user, current_database()")).one() == ("ledger", "ledger")
    with pytest.raises(OperationalError, match="permission denied for database"):
        create_engine(server.url("ledger").replace("@/ledger", "@/airflow")).connect()
    with pytest.raises(OperationalError, match="password authentication failed"):
        create_engine(server.url("ledger").replace("ledger:", "ledger:x")).connect()
    assert down(stack) == 0
    assert of_home(settings.home) == []


@pytest.mark.nightly
def test_data_outlives_a_kill_of_postgres_and_of_its_supervisor(settings: Settings) -> None:
    server, stack = postgres_stack(settings)
    first = up(stack)["postgres"].pid
    server.ensure_databases()
    with create_engine(server.url("ledger")).begin() as connection:
        connection.execute(text("CREATE TABLE kept AS SELECT 42 AS value"))
    assert first
    os.kill(first, signal.SIGKILL)
    eventually(lambda: server.problem() is None and Supervisor(settings.home).states()["postgres"].pid != first)
    os.kill(Supervisor(settings.home).pid(), signal.SIGKILL)
    eventually(lambda: not Supervisor(settings.home).running())
    up(stack)
    with create_engine(server.url("ledger")).connect() as connection:
        assert connection.execute(text("SELECT value FROM kept")).scalar() == 42


@pytest.mark.nightly
def test_a_half_made_data_folder_is_made_anew(settings: Settings) -> None:
    server, stack = postgres_stack(settings)
    (settings.home / "postgres").mkdir()
    (settings.home / "postgres" / "postgresql.conf").write_text("from an initdb that was killed")
    up(stack)
    assert server.problem() is None


@pytest.mark.parametrize("chosen", [True, False], ids=["a folder of one's own choice", "the home's"])
@pytest.mark.parametrize("content", ["thesis.tex", "postmaster.opts"], ids=["others' files", "a cluster that ran"])
def test_a_folder_with_other_things_than_a_half_made_cluster_is_refused_and_left(
    home: Path, chosen: bool, content: str
) -> None:
    home.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    folder = home / "elsewhere" if chosen else home / "postgres"
    (folder / "base").mkdir(parents=True)
    (folder / content).write_text("kept")
    settings = Settings(home=home, postgres_data=folder if chosen else None)
    ensure_secrets(settings)
    with pytest.raises(UserError, match=rf"{folder} holds {content} and no cluster.*ELASTIC_POSTGRES_DATA"):
        EmbeddedPostgres(settings).initialise()
    assert (folder / content).read_text() == "kept"
    assert (folder / "base").is_dir()


@pytest.mark.parametrize("early", [True, False], ids=["before its first file", "after it"])
def test_what_a_broken_off_initdb_leaves_is_made_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    ensure_secrets(settings)
    server = EmbeddedPostgres(settings)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_: None)  # as if ended before it could say that all is made
        server.initialise()
    if early:
        (server.data / "PG_VERSION").unlink()
    (server.data / "base" / "half").write_text("made")
    server.initialise()
    assert (server.data / "PG_VERSION").exists()
    assert not (server.data / "base" / "half").exists()
    (server.data / "base" / "whole").write_text("made")
    server.initialise()
    assert (server.data / "base" / "whole").exists(), "a cluster that was made in full stays"


@pytest.mark.nightly
def test_a_home_too_deep_for_a_socket_gets_its_socket_elsewhere(home: Path) -> None:
    home.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    settings = Settings(home=home / ("x" * 100))
    server, stack = postgres_stack(settings)
    try:
        up(stack)
        assert not server.socket_folder().is_relative_to(home)
        server.ensure_databases()
        create_engine(server.url("mlflow")).connect().close()
    finally:
        down(stack)


def test_it_listens_at_its_own_address_behind_a_name_that_does_not_lead_to_it_yet(home: Path) -> None:
    settings = Settings(
        home=home, postgres_host="postgres.invalid", listen_host="127.0.0.7", postgres_networks="127.0.0.0/8"
    )
    server, stack = postgres_stack(settings)
    up(stack)  # healthy
    assert "postgres.invalid" in str(server.problem())
    at_hand = EmbeddedPostgres(settings.model_copy(update={"postgres_host": "127.0.0.7"}))
    at_hand.ensure_databases()
    with create_engine(at_hand.url("ledger")).connect() as connection:
        assert connection.execute(text("SELECT current_user")).scalar() == "ledger"
    assert "@postgres.invalid:5432/ledger" in server.url("ledger")


def test_machines_of_other_networks_are_turned_away(home: Path) -> None:
    settings = Settings(home=home, postgres_host="127.0.0.7", postgres_networks="10.0.0.0/8,fd00::/8")
    server, stack = postgres_stack(settings)
    up(stack)
    assert "no pg_hba.conf entry" in str(server.problem())


@pytest.mark.parametrize("networks", ["", "10.0.0.0/8,anybody", "10.0.0.0/8 all all trust"])
def test_what_is_no_network_is_refused(networks: str) -> None:
    with pytest.raises(UserError, match=r"ELASTIC_POSTGRES_NETWORKS: .* is no network .*10\.0\.0\.0/8"):
        network_rules(networks)


@pytest.mark.parametrize(
    ("network", "block"), [("10.1.2.3", "10.1.2.3/32"), ("fd00::1", "fd00::1/128"), ("10.0.0.0/8", "10.0.0.0/8")]
)
def test_a_bare_address_is_a_network_of_its_own(network: str, block: str) -> None:
    assert f"host sameuser all {block} scram-sha-256\n" in network_rules(f"samenet, {network}")


def test_its_folder_may_be_below_the_root_of_a_volume_which_is_left_as_it_is(home: Path) -> None:
    home.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    volume = home / "volume"
    (volume / "lost+found").mkdir(parents=True)
    volume.chmod(0o2775)
    settings = Settings(home=home, postgres_data=volume / "data")
    server, stack = postgres_stack(settings)
    up(stack)
    assert server.problem() is None
    assert (volume / "data" / "PG_VERSION").exists()
    assert (volume / "data").stat().st_mode & 0o777 == 0o700
    assert (volume / "lost+found").is_dir()
    assert volume.stat().st_mode & 0o7777 == 0o2775
    assert not (home / "postgres").exists()


def test_a_server_that_does_not_run_says_so(settings: Settings) -> None:
    assert EmbeddedPostgres(settings).problem() == f"PostgreSQL of {settings.home / 'postgres'} does not run"


def test_no_password_is_on_a_command_line(settings: Settings) -> None:
    _, stack = postgres_stack(settings)
    up(stack)
    secrets = [path.read_text() for path in settings.secret_file("").iterdir()]
    lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in of_home(settings.home)]
    assert lines
    assert [line for line in lines if any(secret in line for secret in secrets)] == []
