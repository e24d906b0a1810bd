"""What processes listen on, by the kernel's own tables, and what a stranger of this host gets out of it."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elastic_core.host.network import namespaces
from tests.train import forked

NOBODY = 65534
KNOCK = bytes(range(256)) * 8  # more than any of our handshakes reads
_LISTENING, _ACCEPTS = "0A", 0x10000  # /proc/net/tcp: state; /proc/net/unix: flag


@dataclass(frozen=True, order=True)
class Listener:
    pid: int
    kind: str  # "tcp", "udp" or "unix"
    host: str  # of a Unix socket its path; "@..." for one without a file
    port: int = 0

    @property
    def of_this_host_alone(self) -> bool:
        return self.kind == "unix" or ipaddress.ip_address(self.host).is_loopback


def listeners(pids: Sequence[int]) -> list[Listener]:
    """All of these processes; a socket that several of them have is of each."""
    return sorted(listener for pid in pids for listener in _of(pid))


def knock_as_nobody(
    those: Sequence[Listener], folder: Path, namespace: str | None = None
) -> dict[Listener, bytes | None]:
    """What each says to a process of another Unix user (of ours, if we are not root) that sends `KNOCK`, from that
    network namespace if one is named. None where there is no connection; b"" of who is silent, as UDP may be.
    """
    log = folder / "stranger"
    assert forked.join([forked.start(_knock, [(a.kind, a.host, a.port) for a in those], namespace, log=log)]) == [0]
    heard = (None if answer is None else bytes.fromhex(answer) for answer in json.loads(log.read_text()))
    return dict(zip(those, heard, strict=True))


def _of(pid: int) -> Iterator[Listener]:
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(path))
    for kind in ("tcp", "udp"):
        for suffix in ("", "6"):
            for fields in _table(pid, kind + suffix):
                listens = fields[3] == _LISTENING if kind == "tcp" else fields[2].endswith(":0000")
                if listens and f"socket:[{fields[9]}]" in sockets:
                    host, port = fields[1].split(":")
                    yield Listener(pid, kind, _address(host), int(port, 16))
    for fields in _table(pid, "unix"):
        if int(fields[3], 16) & _ACCEPTS and f"socket:[{fields[6]}]" in sockets:
            yield Listener(pid, "unix", fields[7])


def _table(pid: int, name: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]


def _address(words: str) -> str:
    """Of hexadecimal 32-bit words, each in the host's byte order."""
    data = bytes.fromhex(words)
    packed = b"".join(struct.pack("!I", *struct.unpack_from("=I", data, at)) for at in range(0, len(data), 4))
    return str(ipaddress.ip_address(packed))


def _knock(those: Sequence[tuple[str, str, int]], namespace: str | None) -> int:
    if namespace is not None:
        namespaces.enter(namespace)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    print(json.dumps([_say(*one) for one in those]))
    return 0


def _say(kind: str, host: str, port: int) -> str | None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET6 if ":" in host else socket.AF_INET
    heard = b""
    with socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as stranger:
        stranger.settimeout(2)
        try:
            stranger.connect(host.replace("@", "\0", 1) if kind == "unix" else (host, port))
            if kind == "udp":
                stranger.send(KNOCK[:1024])
                return _answer_to_datagram(stranger)
        except OSError:
            return None
        with suppress(OSError):
            stranger.sendall(KNOCK)
            while more := stranger.recv(4096):
                heard += more
    return heard.hex()


def _answer_to_datagram(stranger: socket.socket) -> str:
    """Raises `OSError` where the kernel says that nobody is there."""
    try:
        return stranger.recv(4096).hex()
    except TimeoutError:
        return ""
