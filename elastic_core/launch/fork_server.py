"""The fork server of this host: a process that has loaded torch, and forks into agents, workers and one-off children.

`python -m elastic_core.launch.fork_server --folder D`, started by `host.fork_client`. Loading torch and the platform's
training code takes a worker two to four seconds of a core; a fork takes hundredths. As with Android's zygote and
Python's `multiprocessing.forkserver`, what forks has one thread, holds nothing of any job and has touched no device.
Users' code is loaded after the fork, by the process that runs it.

It forks on request (`host.fork_client.run`): the module to run, its arguments, environment, folder and open files. Only
the modules of `ENTRIES` are run, and only this user is answered. A request's connection stays open while the process
runs: its exit code comes back there, and a client that hangs up has it killed, as the end of a pipe would. An agent
leaves (`agent.daemonize`) and forks its workers itself (`run`), so that all it promises of them holds as if they had
been executed: it is their parent.

Standard library only, since agents import this; what is preloaded is loaded by `serve`.
"""

from __future__ import annotations

import array
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from elastic_core.host.fork_client import MAX_REQUEST, SOCKET, Request, fixed_environment
from elastic_core.host.messages import ForkServerProcess
from elastic_core.host.network.unix_sockets import reachable
from elastic_core.host.process import ProcessId, die_with_parent, mark_memory
from elastic_core.host.rundir import RunDir
from elastic_core.host.worker_user.dropping import drop

# What may be run, and the function of each that does what `python -m` of it does.
ENTRIES: Mapping[str, str] = {
    "elastic_core.launch.agent": "main",
    "elastic_core.train.process.worker": "process_main",
    "elastic_core.train.process.inspect": "main",
    "elastic_core.train.process.evaluate": "main",
}
# Besides those: what they import at first use. `lazy_dynamo` comes before torch's optimizers are imported.
PRELOADED = (
    "torch",
    "elastic_core.train.process.lazy_dynamo",
    "elastic_core.train.entry",
    "elastic_core.train.session",
    "elastic_core.train.parallel.group",
    "elastic_core.train.steps.runtime_context",
    "elastic_core.train.steps.evaluating",
    "elastic_core.train.checkpoint.restore",
    "elastic_core.train.checkpoint.training_state",
    "elastic_core.train.gradients.pipe",
    "elastic_core.protocol.http_client",
    "elastic_core.state.memory_tier.cache_client",
    "elastic_core.state.memory_tier.cached_store",
    "elastic_core.state.store_access.brokered_store",
    "elastic_core.state.stores.local_store",
    "elastic_core.state.stores.store_urls",
    "elastic_core.launch.delivery",
    "elastic_core.launch.exit_classification",
    "httpcore",
    "certifi",
    "torch.utils.data",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
)
_FIRST_FREE = 64  # where received files are put before they get the numbers that were asked for
_forked = False  # this process came out of a fork server


def can_run(argv: Sequence[str]) -> bool:
    """Whether `run` does here what executing this command would do."""
    return _forked and len(argv) > 2 and tuple(argv[:2]) == (sys.executable, "-m") and argv[2] in ENTRIES


def run(argv: Sequence[str], env: Mapping[str, str], marks: Sequence[str] = ()) -> NoReturn:
    """Become what `argv` (`python -m MODULE ...`) would be, in an interpreter that holds it already.

    To be called in a process just forked. `env` is added to the environment. Variables named in `marks` mark this
    process and whatever it forks in the way that `host.process.marked` finds: the kernel shows the environment that
    the fork server was executed with.
    """
    code = 1
    try:
        os.environ.update(env)
        for name in marks:
            mark_memory(name, env[name])
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
        _reseed()
        sys.argv = [argv[2], *argv[3:]]
        code = getattr(import_module(argv[2]), ENTRIES[argv[2]])(list(argv[3:])) or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at its top
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reseed() -> None:
    """Forks of one process must not draw the same numbers. Python's own `random` does this by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
        limits = sys.modules.get("threadpoolctl")
        if limits is not None:  # BLAS was kept from starting threads: see `fork_client.start`
            threads = int(os.environ.get("OPENBLAS_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))
            limits.threadpool_limits(threads, user_api="blas")


class ForkServer:
    """Answers one folder's socket until SIGTERM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._running: dict[socket.socket, tuple[int, int]] = {}  # pid and its pidfd, by the request's connection
        self._fixed = fixed_environment(os.environ)

    def serve(self) -> None:
        """Listen, and fork whatever is asked for."""
        path = self._folder / SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reachable(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)
        listener.listen(128)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        RunDir(self._folder).write(ForkServerProcess(*ProcessId.current()))
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != os.getuid():
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ, self._hear)

    def _hear(self, connection: socket.socket) -> None:
        """A request, or the end of a client."""
        request: Request | None = None
        files: list[int] = []
        with suppress(OSError):
            request, files = _receive(connection)
        if request is None or connection in self._running:
            self._kill(connection)
            _close_all(files)
            return
        try:
            problem = self._problem(request, files)
            if problem is None:
                self._fork(connection, request, files)
            else:
                self._answer(connection, {"refused": problem})
        except OSError as error:
            self._answer(connection, {"refused": f"cannot fork: {error}"})
        finally:
            _close_all(files)

    def _problem(self, request: Request, files: Sequence[int]) -> str | None:
        """Why this process cannot stand in for a new interpreter; None where it can."""
        if request.module not in ENTRIES:
            return f"{request.module} is none of {', '.join(ENTRIES)}"
        if len(files) != len(request.numbers):
            return f"{len(request.numbers)} files were announced and {len(files)} came"
        asked = fixed_environment(request.env)
        different = sorted(name for name, value in {*asked.items()} ^ {*self._fixed.items()})
        if different:
            return f"{', '.join(dict.fromkeys(different))} differ from what the fork server was started with"
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            return f"the fork server has {threads} threads"
        return None

    def _fork(self, connection: socket.socket, request: Request, files: Sequence[int]) -> None:
        pid = os.fork()
        if pid == 0:
            _become(request, files)
        pidfd = os.pidfd_open(pid)
        self._running[connection] = (pid, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _: self._ended(connection))

    def _ended(self, connection: socket.socket) -> None:
        pid, pidfd = self._running.pop(connection)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._answer(connection, {"exit": os.waitstatus_to_exitcode(status)})

    def _answer(self, connection: socket.socket, answer: Mapping[str, Any]) -> None:
        with suppress(OSError):  # it has hung up: nobody wants to know
            connection.send(json.dumps(answer).encode())
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        connection.close()

    def _kill(self, connection: socket.socket) -> None:
        """The client is gone: so is what it had started, unless that has left (an agent)."""
        self._selector.unregister(connection)
        if connection in self._running:
            pid = self._running[connection][0]
            for kill in (os.kill, os.killpg):  # it may not lead its group yet
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        else:
            connection.close()


def _receive(connection: socket.socket) -> tuple[Request | None, list[int]]:
    """None where the client has hung up or says nothing that can be understood."""
    size = struct.calcsize("i")
    data, ancillary, _, _ = connection.recvmsg(MAX_REQUEST, socket.CMSG_LEN(16 * size))
    files = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(content[: len(content) - len(content) % size])
    try:
        return (Request.parse(data) if data else None), list(files)
    except (ValueError, TypeError, KeyError):
        return None, list(files)


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _become(request: Request, files: Sequence[int]) -> NoReturn:
    """In the process just forked: what `subprocess` and `exec` would have made of it."""
    global _forked
    try:
        _forked = True
        os.setsid()
        die_with_parent()  # an agent, which is to outlive us, forks once more
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _FIRST_FREE) for file in files]
        for file, number in zip(moved, request.numbers, strict=True):
            os.dup2(file, number)
        kept = sorted({0, 1, 2, *request.numbers})
        for before, after in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(before + 1, after)
        os.chdir(request.cwd)
        os.environ.clear()
        if request.user:
            drop(*request.user)
    except BaseException:  # noqa: BLE001 - nothing may return into the server's loop
        traceback.print_exc()
        os._exit(127)
    run([sys.executable, "-m", request.module, *request.argv], request.env)


def preload() -> None:
    """Load what forks need. Raises `ImportError`."""
    for name in PRELOADED:
        module = import_module(name)
        if name.endswith("lazy_dynamo"):
            module.install()
        if name.endswith("http_client"):
            module.make_for_trainers()
    for name in ENTRIES:
        import_module(name)
    with suppress(ImportError):
        import_module("threadpoolctl")
    gc.collect()
    gc.freeze()  # what was loaded is never looked through again, so that forks share its memory


def main(argv: Sequence[str], load: Callable[[], None] = preload) -> None:
    """`--folder D`: called by `fork_client.start` only, hence no help."""
    from elastic_core import logs

    options = dict(zip(argv[::2], argv[1::2], strict=True))
    logs.configure("fork server")
    server = ForkServer(Path(options["--folder"]))
    load()
    server.serve()


if __name__ == "__main__":
    # Not as `__main__`: agents ask this module, by its name, whether they were forked.
    import_module("elastic_core.launch.fork_server").main(sys.argv[1:])
