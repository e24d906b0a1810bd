"""Who runs users' code: the user of `ELASTIC_WORKER_USER`, and why some cannot be it.

Nothing is made or changed here. What the user can reach is asked in a process that has become it, so that whatever the
system decides by (modes, access lists, mounts) is what counts.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from elastic_core.errors import UserError
from elastic_core.host.worker_user.dropping import drop
from elastic_core.settings import Settings


class WorkerUser(NamedTuple):
    """A dedicated, unprivileged Unix user with a group of its own."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def ids(self) -> tuple[int, int]:
        return self.uid, self.gid

    def environment(self) -> dict[str, str]:
        """What names the user to the programs that it runs."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    @staticmethod
    def of(settings: Settings) -> WorkerUser | None:
        """None where the setting is absent. Raises `UserError` where nobody can be that user, or it is no such user."""
        name = settings.worker_user
        if not name:
            return None
        if os.geteuid() != 0:
            raise UserError(
                f"{_named(name)}, and the services' user has uid {os.geteuid()}: only root can run users' code as "
                "another user. Start the services as root, or unset it."
            )
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UserError(
                f"{_named(name)}, and this host has no such user. Make one for jobs alone: useradd --system "
                f"--user-group {name}"
            ) from None
        user = WorkerUser(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
        for refusal in (_privileged(user), _shared_group(user), _owns_home(user, settings.home)):
            if refusal:
                raise UserError(f"{_named(name)}, {refusal}")
        return user


def uid_of_jobs(settings: Settings) -> int:
    """Of the user as whom jobs' processes run on this host. Raises as `WorkerUser.of`."""
    user = WorkerUser.of(settings)
    return os.geteuid() if user is None else user.uid


def require_usable(user: WorkerUser, settings: Settings) -> None:
    """Raises `UserError` that names what the user cannot read and must, or can write and must not."""
    package = find_spec("elastic_core")
    assert package is not None, "this module is part of it"
    code = {Path(place).absolute() for place in package.submodule_search_locations or ()}
    project = settings.project.absolute()
    python = Path(sys.executable)
    interpreter = (python.resolve(), python, Path(sys.prefix), Path(sys.base_prefix))  # what links lead to comes first
    closed = _asked_of(user, "closed", (*interpreter, *sorted(code), project))
    if closed:
        wanted, at = closed
        raise UserError(
            f"{_named(user.name)}, which cannot pass or read {at} ({_mode(Path(at))}) on the way to {wanted}: its "
            "processes need the interpreter, its packages and the project. Install them where every user can read "
            f"them (/opt, say), or let the user pass: chmod o+x {at}"
        )
    above = [parent for place in (*interpreter, settings.home.absolute()) for parent in place.parents]
    kept = (*interpreter, *sorted(code), project, project / "dags", *sorted(set(above)))
    _refuse_writable(user, kept, "users' code could change what the services run")


def require_kept(user: WorkerUser, folder: Path) -> None:
    """Raises `UserError` where the user can change what lies in a folder of root's, or put another in its place."""
    _refuse_writable(user, (folder, *folder.parents), f"users' code could change what root keeps in {folder}")


def _refuse_writable(user: WorkerUser, places: Iterable[Path], what_then: str) -> None:
    writable = _asked_of(user, "writable", places)
    if writable:
        raise UserError(
            f"{_named(user.name)}, which can write in {writable[1]} ({_mode(Path(writable[1]))}): {what_then}. "
            "Take that from it: chown root, chmod go-w."
        )


def _privileged(user: WorkerUser) -> str:
    if user.uid == 0 or user.gid == 0:
        return f"which is root (uid {user.uid}, gid {user.gid}): name an unprivileged user made for jobs alone."
    return ""


def _shared_group(user: WorkerUser) -> str:
    """What is given to the user is given to its group, by which a folder of root's can be opened to one more user."""
    others = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == user.gid}
    try:
        others |= set(grp.getgrgid(user.gid).gr_mem)
    except KeyError:
        return f"whose group {user.gid} this host does not know: groupadd --gid {user.gid} {user.name}"
    others.discard(user.name)
    if not others:
        return ""
    return (
        f"whose group {user.gid} it shares with {', '.join(sorted(others))}: what jobs are given would be theirs. Make "
        "a user with a group of its own: useradd --system --user-group NAME"
    )


def _owns_home(user: WorkerUser, home: Path) -> str:
    if not home.exists() or home.stat().st_uid != user.uid:
        return ""
    return f"which owns {home}: who owns what the services keep can change it. Name a user made for jobs alone."


def _asked_of(user: WorkerUser, question: str, places: Iterable[Path]) -> tuple[str, str] | None:
    """The first place of which the answer is yes, in the user's eyes, and where on the way to it that is so."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = None
        try:
            drop(user.uid, user.gid)
            answer = next(filter(None, (_QUESTIONS[question](place) for place in places)), None)
            os.write(writing, json.dumps([answer and [str(part) for part in answer]]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        said = answers.read()
    os.waitpid(child, 0)
    if not said:
        raise UserError(f"{_named(user.name)}, and no process could become it: its uid is {user.uid}.")
    (found,) = json.loads(said)
    return tuple(found) if found else None


def _closed(place: Path) -> tuple[Path, Path] | None:
    for folder in reversed(place.parents):
        if not os.access(folder, os.X_OK):
            return place, folder
    wanted = os.R_OK | os.X_OK if place.is_dir() else os.R_OK
    return None if os.access(place, wanted) else (place, place)


def _writable(place: Path) -> tuple[Path, Path] | None:
    """A folder of others' files that nobody else may remove (/tmp) is none."""
    if not os.access(place, os.F_OK):
        return None
    status = place.stat()
    shared = not os.access(place, os.W_OK) or status.st_mode & stat.S_ISVTX
    return None if shared and status.st_uid != os.getuid() else (place, place)


_QUESTIONS = {"closed": _closed, "writable": _writable}


def _named(name: str) -> str:
    return f"ELASTIC_WORKER_USER is {name!r}"


def _mode(path: Path) -> str:
    status = path.stat()
    return f"mode {stat.S_IMODE(status.st_mode):04o}, of uid {status.st_uid}"
