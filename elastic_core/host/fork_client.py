"""The way to this host's fork server (`launch.fork_server`): start it, have it run a module, end it.

A convenience, as the cache servers are: without one, or where it cannot stand in for a new interpreter, `run` gives
None and the caller executes Python as ever. It carries no mark of the services and outlives their restart, because what
it has forked does; `elastic down` ends it after the training processes.

Standard library only: the agent imports this.
"""

from __future__ import annotations

import array
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastic_core.host.messages import ForkServerProcess
from elastic_core.host.network.unix_sockets import reachable
from elastic_core.host.process import FORKED_FROM, ProcessId, end_processes
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user import execute

FORK_SERVER = (sys.executable, "-m", "elastic_core.launch.fork_server")
SOCKET = "socket"
MAX_REQUEST = 160 * 1024  # bytes; Linux takes about 200 KiB in one packet
END_SECONDS = 5.0
# Read once, by the interpreter or a library that is loaded already: a fork cannot have others.
_FIXED = ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONHASHSEED")
_FIXED_PREFIXES = ("OMP_", "MKL_")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`python -m MODULE ARGV` with this environment, in this folder; `numbers`: those of the files sent along.

    `user`: uid and gid to become first; () for the fork server's own.
    """

    module: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    numbers: tuple[int, ...]
    user: tuple[int, ...] = ()

    @staticmethod
    def parse(data: bytes) -> Request:
        """Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        fields = json.loads(data)
        return Request(
            module=str(fields["module"]),
            argv=tuple(map(str, fields["argv"])),
            env={str(name): str(value) for name, value in fields["env"].items()},
            cwd=str(fields["cwd"]),
            numbers=tuple(map(int, fields["numbers"])),
            user=tuple(map(int, fields.get("user", ()))),
        )


def fixed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a fork cannot change any more."""
    return {name: value for name, value in environ.items() if name in _FIXED or name.startswith(_FIXED_PREFIXES)}


def folder_of(home: Path) -> Path:
    return home.absolute() / "fork-server"


def start(home: Path, project: Path, environ: Mapping[str, str]) -> None:
    """Start the fork server of this home unless it runs; returns at once, and until it has loaded all starts are cold.

    `environ`: what workers may see, as `host.environment.allowed` gives it.
    """
    folder = folder_of(home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = _process(folder)
        if process is None or not process.alive():
            _spawn(folder, project, environ)


def _spawn(folder: Path, project: Path, environ: Mapping[str, str]) -> None:
    # Forks keep only the thread that forked, so nothing may start any: BLAS gets its own after the fork.
    env = {**environ, "OPENBLAS_NUM_THREADS": "1", FORKED_FROM: str(folder)}
    with (folder / "fork-server.log").open("ab") as output:
        started = subprocess.Popen(
            [*FORK_SERVER, "--folder", str(folder)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=project.absolute(),
            start_new_session=True,
        )  # fmt: skip
    identity = ProcessId.of(started.pid)
    if identity is not None:
        RunDir(folder).write(ForkServerProcess(*identity))


def stop(home: Path) -> None:
    """End it; what it has forked goes on."""
    folder = folder_of(home)
    process = _process(folder)
    if process is not None:
        end_processes([process], END_SECONDS)
    for name in (SOCKET, ForkServerProcess.FILE):
        with suppress(FileNotFoundError):
            (folder / name).unlink()


def run_module(
    home: Path,
    module: str,
    argv: Sequence[str],
    *,
    stdio: tuple[int, int, int],
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    pass_fds: Sequence[int] = (),
    user: tuple[int, ...] = (),
) -> int:
    """`subprocess.run([sys.executable, "-m", module, *argv], ...)` by the fork server, or else by that; the exit code.

    In a session of its own, as `user` (uid, gid) where that is given.
    Raises `subprocess.TimeoutExpired` after so many seconds, when the process has been killed.
    """
    with open(os.devnull, "r+b") as null:
        files = [null.fileno() if file == subprocess.DEVNULL else file for file in stdio]
        request = Request(
            module=module, argv=tuple(argv), env=dict(env), cwd=str(cwd), numbers=(0, 1, 2, *pass_fds), user=user
        )  # fmt: skip
        code = run(home, request, [*files, *pass_fds], timeout)
        if code is not None:
            return code
        stdin, stdout, stderr = files
        done = subprocess.run(
            execute.command(user, module, argv), stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds,
            env=env, cwd=cwd, start_new_session=True, timeout=timeout, check=False,
        )  # fmt: skip
        return done.returncode


def run(home: Path, request: Request, files: Sequence[int], timeout: float) -> int | None:
    """The exit code of the module, run by the fork server; None where a new interpreter must do it.

    `files` are the open files of `request.numbers`. Raises `subprocess.TimeoutExpired` after so many seconds, when
    the process has been killed. A fork server that has died is started again, in this environment, for the next.
    """
    folder, data = folder_of(home), json.dumps(asdict(request)).encode()
    if _process(folder) is None:
        return None
    if len(data) > MAX_REQUEST:
        log.info(f"started without the fork server: {len(data)} bytes of arguments and environment")
        return None
    try:
        connection = _connect(folder)
    except OSError:
        start(home, Path(request.cwd), request.env)
        return None
    with connection:
        connection.settimeout(timeout)
        try:
            connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        except OSError as error:
            log.info(f"started without the fork server: {error}")
            return None
        return _exit_code(connection, request, timeout)


def _exit_code(connection: socket.socket, request: Request, timeout: float) -> int | None:
    try:
        data = connection.recv(MAX_REQUEST)
    except TimeoutError:
        raise subprocess.TimeoutExpired([sys.executable, "-m", request.module], timeout) from None
    except OSError:
        data = b""
    answer: dict[str, Any] = json.loads(data) if data else {"exit": -9}  # the server died, and its child with it
    if "refused" in answer:
        log.info(f"started without the fork server: {answer['refused']}")
        return None
    return int(answer["exit"])


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with reachable(folder / SOCKET) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _process(folder: Path) -> ProcessId | None:
    recorded = RunDir(folder).read(ForkServerProcess)
    return recorded.process if recorded else None
