from __future__ import annotations

import errno
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.secret_files import write_secret
from elastic_core.services.secrets import admin_password, airflow_users, ensure_secrets, read_secret, user_password
from elastic_core.settings import Settings


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_secrets_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ensure_secrets(settings)
    first = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    ensure_secrets(settings)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == first
    assert modes(tmp_path / "secrets") == {0o600}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {"fernet", "jwt", "airflow_api", "control", "trainer", "postgres_ledger"} <= set(first)
    assert len(set(first.values())) == len(first)
    assert all(len(value) >= 24 for value in first.values())


def test_containers_that_make_them_at_once_have_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, drawn, others = Settings(home=tmp_path), secrets.token_urlsafe, {}

    def after_another_container(length: int) -> str:
        monkeypatch.setattr(secrets, "token_urlsafe", drawn)
        ensure_secrets(settings)
        others.update({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
        return drawn(length)

    monkeypatch.setattr(secrets, "token_urlsafe", after_another_container)
    ensure_secrets(settings)
    assert others
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == others


@pytest.fixture(params=[errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def no_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without hard links."""

    def refused(source: str, target: Path) -> None:
        raise OSError(request.param, os.strerror(request.param), source, None, str(target))

    monkeypatch.setattr(os, "link", refused)


def test_without_hard_links_they_are_made_once_all_the_same(
    tmp_path: Path, no_links: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_containers_that_make_them_at_once_have_the_same(tmp_path, monkeypatch)
    assert [path.name for path in (tmp_path / "secrets").iterdir() if path.name.startswith(".")] == []
    assert modes(tmp_path / "secrets") == {0o600}


def test_without_hard_links_processes_at_once_have_the_same(tmp_path: Path, no_links: None) -> None:
    settings = Settings(home=tmp_path)
    with ThreadPoolExecutor(4) as processes:
        list(processes.map(lambda _: ensure_secrets(settings), range(4)))
    known = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    ensure_secrets(settings)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == known


def test_a_claim_that_nobody_makes_good_is_named(
    tmp_path: Path, no_links: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.host.secret_files.CLAIM_SECONDS", 0.1)
    (tmp_path / "secrets").mkdir()
    claim = tmp_path / "secrets" / ".jwt.claim"
    claim.touch()
    with pytest.raises(InfrastructureError, match=rf"{claim} says that another process makes the secret jwt.*remove"):
        ensure_secrets(Settings(home=tmp_path))
    assert list((tmp_path / "secrets").iterdir()) == [claim], "nor is a secret left under another name"


def test_a_link_that_fails_otherwise_is_an_error_and_leaves_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        ensure_secrets(Settings(home=tmp_path))
    assert list((tmp_path / "secrets").iterdir()) == []


def test_modes_that_were_loosened_are_put_right(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ensure_secrets(settings)
    settings.secret_file("control").chmod(0o644)
    ensure_secrets(settings)
    assert modes(tmp_path / "secrets") == {0o600}


def test_two_homes_share_no_secret(tmp_path: Path) -> None:
    one, other = Settings(home=tmp_path / "a"), Settings(home=tmp_path / "b")
    for settings in (one, other):
        ensure_secrets(settings)
    assert read_secret(one, "control") != read_secret(other, "control")
    assert admin_password(one) != admin_password(other)


def test_a_secret_is_replaced_whole_and_stays_private(tmp_path: Path) -> None:
    write_secret(tmp_path / "url", "first")
    write_secret(tmp_path / "url", "second")
    assert (tmp_path / "url").read_text() == "second"
    assert modes(tmp_path) == {0o600}


def test_there_is_no_password_before_the_first_up(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        admin_password(Settings(home=tmp_path))


def test_each_user_of_the_simple_login_gets_a_password_that_stays(tmp_path: Path) -> None:
    ensure_secrets(Settings(home=tmp_path))
    before = admin_password(Settings(home=tmp_path))
    more = Settings(home=tmp_path, airflow_users="admin:admin, ann:user")
    ensure_secrets(more)
    ensure_secrets(more)
    assert airflow_users(more) == {"admin": "admin", "ann": "user"}
    assert (admin_password(more), len(user_password(more, "ann"))) == (before, 16)
    with pytest.raises(UserError, match=r"has no user 'bob'; it has admin, ann\. Add name:role to"):
        user_password(more, "bob")


@pytest.mark.parametrize(
    ("users", "said"),
    [
        ("ann:user", "without admin:admin"),
        ("admin:admin,ann", "'ann' is no user; write name:role"),
        ("admin:admin,ann:boss", "as the role one of viewer, user, op, admin"),
        ("admin:admin,ann@host:user", "does not end with @host"),
        ("admin:admin,a b:user", "'a b:user' is no user"),
    ],
)
def test_users_that_the_simple_login_would_not_take_are_refused(tmp_path: Path, users: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ensure_secrets(Settings(home=tmp_path, airflow_users=users))


@pytest.mark.parametrize("placeholder", ["changeme", "secret", "xxxxxxxx" * 8, "change-me-" * 4])
def test_a_placeholder_is_refused_with_the_file_to_remove(tmp_path: Path, placeholder: str) -> None:
    settings = Settings(home=tmp_path)
    ensure_secrets(settings)
    write_secret(settings.secret_file("jwt"), placeholder)
    with pytest.raises(UserError, match=rf"placeholders stand where secrets should be: jwt in {tmp_path}/secrets"):
        ensure_secrets(settings)
    settings.secret_file("jwt").unlink()
    ensure_secrets(settings)
