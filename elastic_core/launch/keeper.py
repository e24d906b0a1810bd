"""The detached process that keeps the jobs' latest checkpoints in the memory of one node, and gives them out.

One a node, for all jobs; it outlives launchers, agents and workers. A job reaches what is its own, and nothing else, by
a key that is derived from the installation's secret: files over a Unix socket for processes of the node, ranges over
TCP for other nodes. It ends when it has kept nothing for a while, is told to, or its installation is gone; the kernel
frees what it kept then, whatever it died of. Must stay small: no torch, no NumPy.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic_core.errors import InfrastructureError
from elastic_core.launch.kept import Memory
from elastic_core.launch.process import ProcessId
from elastic_core.launch.rundir import RunDir
from elastic_core.state.channel import Channel
from elastic_core.state.keeper_client import FAULTS, Access, KeeperClient, new_file, seal, write_all

ADMIN = ""  # the name under which the installation itself, not a job, speaks
SILENCE_SECONDS = 600.0  # that a connection may rest: a slow store lets its writer wait
KEEP_SECONDS = 3600.0  # for a job that nobody has spoken of
IDLE_SECONDS = 600.0  # with nothing kept and nobody connected, before it ends: workers may take long to start
TICK_SECONDS = 2.0
ACCEPT_SECONDS = 0.1  # before the next try to take a connection
NICE = 10  # training goes first
RESERVE = 8  # the last 1/8 of the host's memory is never used
MAX_READ = 64 << 20  # bytes of one answer
PULL_BYTES = 4 << 20  # of one request of ours to another node


def job_key(secret: bytes, job: str) -> bytes:
    return hmac.digest(secret, b"node memory\0" + job.encode(), "sha256")


class _Peer:
    """One connection, and the room that it has reserved."""

    def __init__(self, channel: Channel, job: str) -> None:
        self.channel, self.job, self.room = channel, job, 0


class Keeper:
    def __init__(self, folder: Path, node: str, secret: bytes, memory: Memory, host: str = "127.0.0.1") -> None:
        """`folder`: where the keepers of all nodes say how to reach them."""
        self._folder, self._node, self._secret, self._memory = folder, node, secret, memory
        self._near = socket.socket(socket.AF_UNIX)
        name = f"elastic-memory-{secrets.token_hex(8)}"
        self._near.bind("\0" + name)  # without a file: nothing is left behind
        self._near.listen()
        self._far = socket.create_server((host, 0))
        self.address = {"socket": name, "host": host, "port": self._far.getsockname()[1]}
        self._lock = threading.Lock()
        self._num_connections = 0
        self._spoken = time.monotonic()
        for listener in (self._near, self._far):
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def idle_seconds(self) -> float:
        """Since somebody was connected, or anything was kept."""
        with self._lock:
            if self._num_connections or not self._memory.empty:
                self._spoken = time.monotonic()
            return time.monotonic() - self._spoken

    def close(self) -> None:
        for listener in (self._near, self._far):
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                time.sleep(ACCEPT_SECONDS)  # too many open files
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        peer = None
        with self._lock:
            self._num_connections += 1
        try:
            with connection, suppress(OSError, EOFError, ValueError, KeyError, TypeError):  # gone, or no peer of ours
                connection.settimeout(SILENCE_SECONDS)
                peer = self._met(connection)
                while peer is not None:
                    self._answer(peer, json.loads(peer.channel.receive_request()))
        finally:
            if peer is not None:
                self._memory.release(peer.room)
            with self._lock:
                self._num_connections -= 1

    def _met(self, connection: socket.socket) -> _Peer | None:
        length = int.from_bytes(connection.recv(2, socket.MSG_WAITALL), "little")
        job = connection.recv(length, socket.MSG_WAITALL).decode() if length else ""
        channel = Channel.accept(connection, job_key(self._secret, job))
        return _Peer(channel, job) if channel is not None else None

    def _answer(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        operations = _OF_ADMIN if peer.job == ADMIN else _OF_JOB
        try:
            operations[request["op"]](self, peer, request)
        except InfrastructureError as error:
            peer.channel.send_fault(str(error))

    def _reserve(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        size, ahead = int(request["bytes"]), int(request["ahead"])
        granted = self._memory.reserve(peer.job, request["uri"], size, ahead) if min(size, ahead) >= 0 else 0
        if not granted:
            raise InfrastructureError(
                f"node {self._node} has no room for {size} bytes more: {self._memory.used} of {self._memory.limit} are "
                f"used (ELASTIC_NODE_MEMORY_MB), and the host has {max(0, spare())} to spare"
            )
        peer.room += granted
        _say(peer, granted)

    def _keep(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        fd = peer.channel.receive_file()
        size = os.fstat(fd).st_size
        fits = size <= peer.room
        self._memory.release(peer.room - size if fits else peer.room)
        peer.room = 0
        if not fits:
            os.close(fd)
            raise InfrastructureError(f"{request['key']} has {size} bytes, more than were reserved")
        try:
            self._memory.keep(peer.job, str(request["key"]), fd, own=True)
        except ValueError:
            os.close(fd)
            self._memory.release(size)
            raise
        _say(peer, True)

    def _list(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        _say(peer, self._memory.listed(peer.job, request["uri"], bool(request.get("own"))))

    def _open(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        with self._memory.opened(peer.job, request["key"]) as fd:
            found = self._require(fd, request)
            _say(peer, True)
            peer.channel.send_file(found)

    def _read(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        offset, length = int(request["offset"]), int(request["length"])
        if not 0 <= length <= MAX_READ:
            raise ValueError(f"a request for {length} bytes")
        with self._memory.opened(peer.job, request["key"]) as fd:
            data = os.pread(self._require(fd, request), length, offset)
        peer.channel.send_answer(data)

    def _require(self, fd: int | None, request: Mapping[str, Any]) -> int:
        if fd is None:
            raise InfrastructureError(f"node {self._node} does not keep {request['key']} any more")
        return fd

    def _committed(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        uri, nodes = str(request["uri"]), [str(node) for node in request["copy"]]
        self._memory.committed(peer.job, uri)
        _say(peer, True)
        if nodes:
            threading.Thread(target=self._copy, args=(peer.job, uri, nodes), daemon=True).start()

    def _copy(self, job: str, uri: str, nodes: Sequence[str]) -> None:
        """Fetch what these nodes wrote of a checkpoint, as long as it is the job's latest."""
        for node in nodes:
            client = KeeperClient(Access(self._folder, (), job, job_key(self._secret, job)), node)
            try:
                for key, size in client.ask(op="list", uri=uri, own=True).items():
                    self._copy_file(job, uri, client, key, size)
            except FAULTS as error:
                log(f"what node {node} wrote of {uri} was not copied: {error}")
            finally:
                client.close()

    def _copy_file(self, job: str, uri: str, client: KeeperClient, key: str, size: int) -> None:
        if key in self._memory.listed(job, uri):
            return
        if not self._memory.reserve(job, uri, size):
            raise InfrastructureError(f"no room for {size} bytes: {self._memory.used} of {self._memory.limit} are used")
        fd = new_file()
        try:
            with client.borrow() as borrowed:
                for offset in range(0, size, PULL_BYTES):
                    if self._memory.newest(job) != uri:
                        raise InfrastructureError("a newer one is committed")
                    write_all(fd, borrowed.read_bytes(key, offset, min(PULL_BYTES, size - offset)))
            seal(fd)
            self._memory.keep(job, key, fd, own=False)
        except BaseException:
            os.close(fd)
            self._memory.release(size)
            raise

    def _drop(self, peer: _Peer, _: Mapping[str, Any]) -> None:
        self._memory.drop(peer.job)
        _say(peer, True)

    def _only(self, peer: _Peer, request: Mapping[str, Any]) -> None:
        self._memory.only(set(request["jobs"]))
        _say(peer, True)


_Operation = Callable[[Keeper, _Peer, Mapping[str, Any]], None]
_OF_JOB: Mapping[str, _Operation] = {
    "reserve": Keeper._reserve,
    "keep": Keeper._keep,
    "list": Keeper._list,
    "open": Keeper._open,
    "read": Keeper._read,
    "committed": Keeper._committed,
    "drop": Keeper._drop,
}
_OF_ADMIN: Mapping[str, _Operation] = {"only": Keeper._only}


def _say(peer: _Peer, answer: Any) -> None:
    peer.channel.send_answer(json.dumps(answer).encode())


def run(folder: Path, node: str, secret_file: Path, limit: int, host: str, ready: Callable[[], None]) -> None:
    """Keep until nobody needs it. Returns at once when the node has a keeper already."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    lock = os.open(folder / f"{node}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.nice(NICE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each file that is kept
    secret, memory = secret_file.read_bytes(), Memory(limit, time.monotonic, spare)
    keeper, me = Keeper(folder, node, secret, memory, host), ProcessId.of(os.getpid())
    assert me is not None
    here = RunDir(folder)
    here.write(f"{node}.json", {**me._asdict(), **keeper.address})
    log(f"keeps up to {limit} bytes for node {node}")
    ready()
    while not stopped.wait(TICK_SECONDS) and keeper.idle_seconds < IDLE_SECONDS and _still(secret_file, secret):
        memory.expire(KEEP_SECONDS)
    keeper.close()
    with suppress(OSError):
        (folder / f"{node}.json").unlink()
    log("ends")


def spare() -> int:
    """Bytes of the host's memory that may still be used for this. A container's own limit is not known here."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    return sizes["MemAvailable"] - sizes["MemTotal"] // RESERVE


def _still(secret_file: Path, secret: bytes) -> bool:
    """Whether the installation is still there."""
    try:
        return secret_file.read_bytes() == secret
    except OSError:
        return False


def log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} keeper {os.getpid()}: {text}", flush=True)


def main(argv: Sequence[str]) -> None:
    """`--folder D --node N --secret F --limit BYTES --host H`: called by `launch.keepers` only, hence no help.

    The process that was started returns once the keeper, which has left its caller's process tree, can be reached.
    """
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # or the end of it
        os._exit(0)
    os.close(reading)
    os.setsid()
    run(
        Path(options["--folder"]),
        options["--node"],
        Path(options["--secret"]),
        int(options["--limit"]),
        options["--host"],
        ready=lambda: os.close(writing),
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
