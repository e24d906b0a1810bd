"""The supervisor's daemon: its configuration, its start, and questions to it over a Unix socket.

`supervisor` was chosen over circus and honcho: it is alive (4.3, 2025), restarts what dies, rotates logs, and is
asked over XML-RPC on a Unix socket with a small client of its own. Circus brings ZeroMQ and an event loop; honcho
stays in the foreground, restarts nothing and has nothing to ask.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import Faults, SupervisorTransport

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.process import ProcessId
from elastic_core.services.supervision.marks import home_mark
from elastic_core.services.supervision.program import Program
from elastic_core.services.supervision.run import Launch

_MAX_SOCKET_PATH = 107  # sun_path of Linux, less the closing zero

_HEAD = """\
[unix_http_server]
file={socket}
chmod=0700

[supervisord]
logfile={logs}/supervisord.log
logfile_maxbytes=10MB
logfile_backups=1
pidfile={folder}/supervisord.pid
directory={folder}
umask=077
{user}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""

_PROGRAM = """
[program:{name}]
command={python} -m elastic_core.services.supervision.run {launch}
autostart=false
autorestart=true
startsecs=1
startretries=20
stopsignal={stop_signal}
stopwaitsecs={stop_seconds}
stopasgroup={as_group}
killasgroup=true
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes=20MB
stdout_logfile_backups=2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramState:
    name: str
    state: str  # STOPPED | STARTING | RUNNING | BACKOFF | STOPPING | EXITED | FATAL
    pid: int
    started: float
    detail: str


class Supervisor:
    """The daemon of one home. Nothing here waits for programs: see `stack`."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.folder = self.home / "services"
        self.logs = self.home / "logs"
        self.socket = short_folder(self.home, "supervisor.sock.4194304") / "supervisor.sock"

    def files(self, programs: Sequence[Program]) -> dict[Path, str]:
        """The configuration that these programs need: nothing is written."""
        user = "user=root" if os.geteuid() == 0 else ""
        head = _HEAD.format(socket=_value(self.socket), logs=_value(self.logs), folder=_value(self.folder), user=user)
        sections = [self._section(program) for program in programs]
        launches = {self._launch_file(program): launch_of(self.home, program).json() for program in programs}
        return {self.folder / "supervisord.conf": head + "".join(sections)} | launches

    def configure(self, files: Mapping[Path, str]) -> None:
        for folder in (self.folder, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            os.chmod(folder, 0o700)
        for path, text in files.items():
            path.write_text(text)

    def _launch_file(self, program: Program) -> Path:
        return self.folder / f"{program.name}.json"

    def _section(self, program: Program) -> str:
        return _PROGRAM.format(
            name=program.name,
            python=_argument(sys.executable),
            launch=_argument(str(self._launch_file(program))),
            stop_signal=program.stop_signal,
            stop_seconds=program.stop_seconds,
            as_group="true" if program.stop_signal == "TERM" else "false",
            log=_value(Path(_value(self.logs / f"{program.name}.log"))),  # the supervisor expands this value twice
        )

    def running(self) -> bool:
        """Whether the daemon answers. A socket without a daemon behind it is no daemon."""
        try:
            self._rpc().supervisor.getPID()
        except (OSError, xmlrpc.client.ProtocolError):
            return False
        return True

    def start(self, environment: dict[str, str]) -> None:
        self.socket.unlink(missing_ok=True)  # of a killed daemon: a live one would have answered
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.folder / "supervisord.conf")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while done.returncode == 0 and time.monotonic() < deadline:
            if self.running():
                return
            time.sleep(0.05)
        raise InfrastructureError(
            f"the supervisor did not start (exit code {done.returncode}): {(done.stdout + done.stderr).strip()}; "
            f"see {self.logs / 'supervisord.log'}"
        )

    def pid(self) -> int:
        return int(self._call("getPID"))

    def states(self) -> dict[str, ProgramState]:
        return {
            str(info["name"]): ProgramState(
                name=str(info["name"]),
                state=str(info["statename"]),
                pid=int(info["pid"]),
                started=float(info["start"]),
                detail=str(info["spawnerr"] or info["description"]),
            )
            for info in self._call("getAllProcessInfo")
        }

    def start_program(self, name: str) -> None:
        """Does not wait; a program that is starting or running is left alone."""
        self._call("startProcess", name, False, harmless=Faults.ALREADY_STARTED)

    def stop_programs(self, names: Sequence[str], timeout: float) -> None:
        """Ask all of them at once, then wait until all have ended (the daemon kills those that take too long)."""
        for name in names:
            self._call("stopProcess", name, False, harmless=Faults.NOT_RUNNING)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            states = self.states()
            if all(states[name].state in ("STOPPED", "EXITED", "FATAL") for name in names):
                return
            time.sleep(0.1)

    def shutdown(self) -> None:
        """End the daemon, and all programs that still run. Raises `InfrastructureError` if it is not gone in 60 s."""
        daemon = ProcessId.of(self.pid())
        self._call("shutdown")
        deadline = time.monotonic() + 60
        while daemon and daemon.alive():
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the supervisor (pid {daemon.pid}) of {self.home} does not end")
            time.sleep(0.05)

    def _call(self, method: str, *arguments: object, harmless: int | None = None) -> Any:
        try:
            return getattr(self._rpc().supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == harmless:
                return None
            raise InfrastructureError(f"supervisor: {method}{arguments}: {fault.faultString}") from fault
        except OSError as error:
            raise InfrastructureError(f"the supervisor of {self.home} does not answer: {error}") from error

    def _rpc(self) -> xmlrpc.client.ServerProxy:
        return xmlrpc.client.ServerProxy("http://127.0.0.1", SupervisorTransport(None, None, f"unix://{self.socket}"))


def launch_of(home: Path, program: Program) -> Launch:
    return Launch(
        home=str(home),
        program=program.name,
        command=program.command,
        environment=dict(program.environment),
        secrets={name: str(path) for name, path in program.secrets.items()},
        user=program.user,
    )


def short_folder(home: Path, name: str) -> Path:
    """A private folder in which a Unix socket called `name` fits the system's limit: <home>/services if it can."""
    folder = home.absolute() / "services"
    if len(str(folder / name).encode()) > _MAX_SOCKET_PATH:
        folder = Path(tempfile.gettempdir()) / f"elastic-{os.getuid()}-{home_mark(home)}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return folder


def _value(path: Path) -> str:
    return str(path).replace("%", "%%")


def _argument(text: str) -> str:
    return shlex.quote(text).replace("%", "%%")
