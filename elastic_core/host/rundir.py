"""The folder of one process group, through which launcher, agent and workers find each other. Mode 0700, or 1770 where
workers are another user's (`ELASTIC_WORKER_USER`), who may then put anything there that has no other's name.

<home>/run/<origin_epoch>/
  *.json                   messages (`host.messages`), each replaced by an atomic rename, 0600
  logs/rank<r>.log, logs/agent.log
  code/                    the job's pinned code (`state.job_code`)
  start.lock               held by the launcher that starts the group (`launch.local`)
<r> is a worker's number: its rank when the group was started, the next free number for one that came later.

A missing file is no error: `read` gives None, as for one that somebody else has put in the place of the owner's. So it
does for an empty one, which nobody writes: a power cut leaves it, where a new name was on the disk before the bytes.
What files say of processes needs no more care, since no process outlives the host; only how a group ended, which is
told later, is on the disk at once. One that is malformed raises an `InfrastructureError` that names it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import EXIT, ORDER, M, Malformed, decode, encode
from elastic_core.host.worker_user.deep_folders import remove_tree
from elastic_core.host.worker_user.foreign_files import ForeignFile, is_given, read_message

if TYPE_CHECKING:  # at run time inside the functions that need it: the agent must stay small
    from elastic_core.protocol.process_groups import ExitReport, LaunchOrder

RUN_DIR = "ELASTIC_RUN_DIR"  # marks every process of a group, grandchildren too: see `process.marked`
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunDir:
    path: Path

    @staticmethod
    def of(home: Path, origin_epoch: int) -> RunDir:
        return RunDir(home.absolute() / "run" / str(origin_epoch))

    def create(self, gid: int | None = None) -> None:
        """Make the folder; with `gid` that group may read it, and write in it as well once `open_to_workers` was
        called."""
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        if gid is None:
            os.chmod(self.path, 0o700)
        elif not self.path.stat().st_mode & stat.S_ISVTX:
            os.chmod(self.path / "logs", 0o700)
            os.chown(self.path, -1, gid)
            os.chmod(self.path, 0o750)

    def open_to_workers(self, uid: int, gid: int) -> None:
        """Make it a mailbox of this user, who replaces the order and nothing else that is there already."""
        os.chown(self.path / ORDER, uid, gid, follow_symlinks=False)
        os.chmod(self.path, 0o1770)

    def log(self, rank: int) -> Path:
        return self.path / "logs" / f"rank{rank}.log"

    @property
    def code(self) -> Path:
        """The job's pinned code, to be found before any other of its names; absent where nothing is pinned."""
        return self.path / "code"

    @property
    def agent_log(self) -> Path:
        return self.path / "logs" / "agent.log"

    def read(self, kind: type[M], of: int | str | None = None) -> M | None:
        """The message; None when there is no such file. `of`: the worker or node that its name holds."""
        name = kind.FILE.format(of)
        value = self.read_json(name, owners_only=not kind.BY_WORKERS)
        try:
            return None if value is None else decode(kind, value)
        except Malformed as error:
            raise InfrastructureError(f"{self.path / name} cannot be used: {error}") from None

    def require(self, kind: type[M], of: int | str | None = None) -> M:
        """As `read`; raises `InfrastructureError` when there is no such file."""
        message = self.read(kind, of)
        if message is None:
            raise InfrastructureError(f"{self.path / kind.FILE.format(of)} does not exist, or is empty")
        return message

    def read_each(self, kind: type[M]) -> list[M]:
        """The messages of this kind of all workers that have written one."""
        before, after = kind.FILE.split("{}")
        names = [path.name for path in self.path.glob(f"{before}*{after}")]
        messages = [self.read(kind, name.removeprefix(before).removesuffix(after)) for name in names]
        return [message for message in messages if message is not None]

    def write(self, message: M, of: int | str | None = None) -> None:
        self.write_json(message.FILE.format(of), encode(message))

    def delete(self, kind: type[M], of: int | str | None = None) -> None:
        (self.path / kind.FILE.format(of)).unlink(missing_ok=True)

    def order(self) -> LaunchOrder:
        """The order in force. Raises `InfrastructureError` when there is none, or it is malformed."""
        from elastic_core.protocol.process_groups import LaunchOrder

        order = self._read_domain(LaunchOrder, ORDER, owners_only=False)
        if order is None:
            raise InfrastructureError(f"{self.path / ORDER} does not exist, or is empty")
        return order

    def write_order(self, order: LaunchOrder) -> None:
        from elastic_core.domain import to_json

        self.write_json(ORDER, to_json(order))

    def exit_report(self) -> ExitReport | None:
        """What became of the group; None until all its processes are gone."""
        from elastic_core.protocol.process_groups import ExitReport

        return self._read_domain(ExitReport, EXIT, owners_only=True)

    def ended_at(self) -> float | None:
        """When exit.json was written, Unix seconds; None without one."""
        try:
            status, around = (self.path / EXIT).lstat(), self.path.stat()
            return None if is_given(around) and status.st_uid != around.st_uid else status.st_mtime
        except FileNotFoundError:
            return None

    def write_exit(self, report: ExitReport) -> None:
        from elastic_core.domain import to_json

        self.write_json(EXIT, to_json(report), lasting=True)

    def read_json(self, name: str, *, owners_only: bool = True) -> Any | None:
        """The plain JSON value of a file; None when there is none. `owners_only`: as for `read_message`."""
        try:
            content = read_message(self.path, name, owners_only=owners_only)
            return json.loads(content) if content and content.strip(b"\0") else None
        except ForeignFile as error:
            raise InfrastructureError(str(error)) from None
        except OSError as error:  # workers may have taken its owner's right to read it
            raise InfrastructureError(f"{self.path / name} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise InfrastructureError(f"{self.path / name} is not JSON: {error}") from None

    def write_json(self, name: str, value: Any, *, lasting: bool = False) -> None:
        """Replace a JSON file, whole or not at all, readable by its owner only, and by whom the folder is open to.

        `lasting`: it is on the disk when this returns, whatever becomes of the host.
        """
        fd, temporary = tempfile.mkstemp(dir=self.path, prefix=f".{name}.")
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(value, file)
                around = self.path.stat()
                if is_given(around) and around.st_uid == os.geteuid():
                    os.fchown(fd, -1, around.st_gid)
                    os.fchmod(fd, 0o640)
                if lasting:
                    file.flush()
                    os.fsync(fd)
            self._put(temporary, name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        if lasting:
            sync_folder(self.path)

    def _put(self, temporary: str, name: str) -> None:
        try:
            os.replace(temporary, self.path / name)
        except IsADirectoryError:  # put there by the workers' user, to be in the way
            remove_tree(self.path / name)
            os.replace(temporary, self.path / name)

    def _read_domain(self, kind: type[T], name: str, *, owners_only: bool) -> T | None:
        from pydantic import ValidationError

        from elastic_core.domain import from_json

        value = self.read_json(name, owners_only=owners_only)
        try:
            return None if value is None else from_json(kind, value)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise InfrastructureError(
                f"{self.path / name} cannot be used: the field {field!r}: {first['msg']}"
            ) from None


def sync_folder(path: Path) -> None:
    """The names in it survive a power cut from now on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
