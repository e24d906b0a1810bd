"""Secrets of one installation: made once, kept as files of mode 0600 below <home>/secrets, never printed.

No secret goes onto a command line, into a log or into airflow.cfg: Airflow reads its own by `cat` of these files
(`*_cmd` options), everything else by `Settings.secret_file`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress

from elastic_core.errors import UserError
from elastic_core.host.mlflow_access import ADMIN, PASSWORDS, SECRET
from elastic_core.host.secret_files import ensure_secret, random_secret, write_secret
from elastic_core.protocol.callers import HOST_SUFFIX
from elastic_core.protocol.tokens import BEFORE, is_placeholder
from elastic_core.settings import Settings

ROLES = ("viewer", "user", "op", "admin")  # of Airflow's SimpleAuthManager
POSTGRES_ROLES = ("airflow", "ledger", "mlflow")
SIGNING = ("control", "trainer")
_RANDOM = (
    *("jwt", "airflow_api", "control", "trainer", "metrics", SECRET, "postgres", "redis", "s3"),
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
        ensure_secret(settings.secret_file(name))
    ensure_secret(settings.secret_file("fernet"), _fernet_key)
    _ensure_passwords(settings)
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another container's, on its way to its name
            os.chmod(path, 0o600)
    placeholders = [name for name in (*_RANDOM, "fernet") if is_placeholder(settings.secret_file(name).read_bytes())]
    if placeholders:
        raise UserError(
            f"placeholders stand where secrets should be: {', '.join(placeholders)} in {folder}. Remove these files; "
            "`elastic up` makes random ones. Those of databases that exist (postgres...) are set anew as well"
        )


def rotate(settings: Settings, names: Sequence[str], now: float, overlap_seconds: float) -> tuple[str, ...]:
    """Make new secrets in the place of these; those before count for `overlap_seconds` more, none for 0.

    Returns which were made. One whose secret before still counts is left as it is, since only one is kept, and what was
    signed with it would be refused at once: asked again after it was broken off, it goes on with the rest. Users of a
    secret see the change by themselves (`KeyFile`), or when they start anew. Raises `UserError` for a secret that is
    none of `SIGNING`, and where all are left.
    """
    left: dict[str, float] = {}
    names = tuple(dict.fromkeys(names))  # one made twice would put its first new one in the place of the one before
    for name in names:
        if name not in SIGNING:
            raise UserError(
                f"{name!r} is not a secret that can be rotated while jobs run; those are {', '.join(SIGNING)}. For the "
                "others: `elastic down`, remove the file, `elastic up`"
            )
        if not settings.secret_file(name).exists():
            raise UserError(f"there is no secret {settings.secret_file(name)} yet: `elastic up` makes it")
        if overlap_seconds and (more := _overlap(settings, name) - now) > 0:
            left[name] = more
    if left and len(left) == len(names):
        name, more = next(iter(left.items()))
        raise UserError(
            f"the secret before the {name!r} of now counts for {more / 3600:.1f} h more, and what it signed would be "
            "refused. Rotate again after that, or with --at-once: processes that still use it are refused then, and "
            "their jobs go on from their last checkpoints"
        )
    made = tuple(name for name in names if name not in left)
    for name in made:
        path, before = settings.secret_file(name), settings.secret_file(name + BEFORE)
        if overlap_seconds:
            write_secret(before, f"{now + overlap_seconds:.0f}\n{path.read_text().strip()}")
        else:
            before.unlink(missing_ok=True)
        write_secret(path, random_secret())
    return made


def _overlap(settings: Settings, name: str) -> float:
    """Until when the secret before counts; 0 where it is the one of now (its rotation was broken off), or none."""
    before = settings.secret_file(name + BEFORE)
    if not before.exists():
        return 0.0
    until, _, secret = before.read_text().partition("\n")
    return 0.0 if secret.strip() == read_secret(settings, name) else float(until)


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
    if not re.fullmatch(r"[A-Za-z0-9._@-]+", name) or role not in ROLES or name.endswith(HOST_SUFFIX):
        raise UserError(
            f"ELASTIC_AIRFLOW_USERS: {entry!r} is no user; write name:role, with letters, digits, '.', '_', '@', '-' "
            f"in the name, which does not end with {HOST_SUFFIX}, and as the role one of {', '.join(ROLES)}"
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


def _fernet_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()
