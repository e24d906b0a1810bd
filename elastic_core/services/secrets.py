"""Secrets of one installation: made once, kept as files of mode 0600 below <home>/secrets, never printed.

No secret goes onto a command line, into a log or into airflow.cfg: Airflow reads its own by `cat` of these files
(`*_cmd` options), everything else by `Settings.secret_file`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.mlflow_access import ADMIN, PASSWORDS, SECRET
from elastic_core.protocol.tokens import is_placeholder
from elastic_core.settings import Settings

ROLES = ("viewer", "user", "op", "admin")  # of Airflow's SimpleAuthManager
POSTGRES_ROLES = ("airflow", "ledger", "mlflow")
_RANDOM = (
    *("jwt", "airflow_api", "control", "trainer", SECRET, "postgres"),
    *(f"postgres_{role}" for role in POSTGRES_ROLES),
)


def ensure_secrets(settings: Settings) -> None:
    """Make whatever secret is missing; those that exist are left alone, but their modes are put right.

    Raises `UserError` for one that is a placeholder.
    """
    folder = settings.secret_file("").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    for name in _RANDOM:
        _ensure(settings.secret_file(name), lambda: secrets.token_urlsafe(48))
    _ensure(settings.secret_file("fernet"), _fernet_key)
    _ensure_passwords(settings)
    for path in folder.iterdir():
        os.chmod(path, 0o600)
    placeholders = [name for name in (*_RANDOM, "fernet") if is_placeholder(settings.secret_file(name).read_bytes())]
    if placeholders:
        raise UserError(
            f"placeholders stand where secrets should be: {', '.join(placeholders)} in {folder}. Remove these files; "
            "`elastic up` makes random ones. Those of databases that exist (postgres...) are set anew as well"
        )


def write_secret(path: Path, value: str) -> None:
    """Replace a secret, whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600 from its first moment
    with os.fdopen(fd, "w") as file:
        file.write(value)
    os.replace(temporary, path)


def read_secret(settings: Settings, name: str) -> str:
    return settings.secret_file(name).read_text().strip()


def airflow_users(settings: Settings) -> dict[str, str]:
    """Role by user of Airflow's simple login. Raises `UserError` for a setting that says something else."""
    users = dict(_user(entry.strip()) for entry in settings.airflow_users.split(","))
    if users.get(ADMIN) != ADMIN:
        raise UserError(
            f"ELASTIC_AIRFLOW_USERS is {settings.airflow_users!r}, without admin:admin, whose password is the "
            "platform's own. Add admin:admin"
        )
    return users


def _user(entry: str) -> tuple[str, str]:
    name, _, role = entry.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._@-]+", name) or role not in ROLES or name.endswith("@host"):
        raise UserError(
            f"ELASTIC_AIRFLOW_USERS: {entry!r} is no user; write name:role, with letters, digits, '.', '_', '@', '-' "
            f"in the name, which does not end with @host, and as the role one of {', '.join(ROLES)}"
        )
    return name, role


def user_password(settings: Settings, name: str) -> str:
    """Of a user of Airflow's simple login. Raises `FileNotFoundError` before any `elastic up`, `UserError` for a name
    that has none."""
    passwords: dict[str, str] = json.loads(read_secret(settings, PASSWORDS))
    if name not in passwords:
        raise UserError(
            f"Airflow's login has no user {name!r}; it has {', '.join(sorted(passwords))}. Add name:role to "
            "ELASTIC_AIRFLOW_USERS, then `elastic up`"
        )
    return passwords[name]


def admin_password(settings: Settings) -> str:
    """Password of the user `admin`, for Airflow and MLflow. Raises `FileNotFoundError` before any `elastic up`."""
    return user_password(settings, ADMIN)


def _ensure_passwords(settings: Settings) -> None:
    """The file that Airflow's SimpleAuthManager reads; it adds no password of its own where each user has one."""
    path = settings.secret_file(PASSWORDS)
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in airflow_users(settings) if name not in known]
    if missing:
        write_secret(path, json.dumps({**known, **{name: secrets.token_urlsafe(12) for name in missing}}))


def _ensure(path: Path, make: Callable[[], str]) -> None:
    if not path.exists():
        write_secret(path, make())


def _fernet_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()
