"""A network on one machine: a namespace for each rank, and between them links of a stated rate and delay.

Without a delay, veth pairs to a bridge in one more namespace; a token bucket (`tc tbf`) at both ends of a pair holds
what a rank sends and what it gets to the rate. With one, TUN devices whose packets `delay_switch` carries. Nothing is
made in the machine's own namespace. What was made is gone after `close`, also by an exception or a signal that
`unwinding` turns into one; after SIGKILL `ip netns` still lists it.

Needs root (CAP_NET_ADMIN), `ip` and `tc` (iproute2), and the kernel's veth, bridge and tbf.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

INTERFACE = "eth0"  # of every rank, in its own namespace
TUN = Path("/dev/net/tun")
_SUBNET = "10.77.0"
_MOST_PACKET = 65_536
_QUEUE = "100ms"  # that a packet may wait in a token bucket before it is dropped


@dataclass(frozen=True, slots=True)
class Network:
    """Of every rank's link: bits a second each way (None: as fast as the machine is), and seconds one way."""

    name: str
    bits_per_second: float | None
    delay_seconds: float = 0.0


def missing(*, delays: bool = False) -> str | None:
    """What a network cannot be made without here, in words; None if all is there. `delays`: for those with a delay."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only; run it as root (sudo, or a privileged container)"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"there is no program `{program}`; install iproute2 (apt-get install iproute2)"
    if delays and not TUN.exists():
        return f"there is no {TUN}, by which packets are delayed; load the kernel's module tun"
    tried = f"net{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", tried], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"`ip netns add` fails: {made.stderr.strip()}; it takes CAP_SYS_ADMIN and CAP_NET_ADMIN"
    _run("ip", "netns", "del", tried)
    return None


class Namespaces:
    """Namespaces of `world` ranks on one network. A context manager."""

    def __init__(self, world: int, network: Network) -> None:
        self._names = [f"net{os.getpid()}-{rank}" for rank in range(world)]
        self._middle = f"net{os.getpid()}-s"
        self._network = network
        self._made: list[str] = []
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                self._add(name)
            if self._network.delay_seconds:
                self._carry()
            else:
                self._bridge()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self, rank: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """A process on the rank's side of its link."""
        return subprocess.Popen(["ip", "netns", "exec", self._names[rank], *command], **options)

    def close(self) -> None:
        if self._switch is not None:
            self._switch.terminate()
            self._switch.wait()
            self._switch = None
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False)

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _bridge(self) -> None:
        middle, rate = self._middle, self._network.bits_per_second
        self._add(middle)
        _run("ip", "-n", middle, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", middle, "link", "set", "br0", "up")
        for rank, name in enumerate(self._names):
            port = f"port{rank}"
            _run(
                "ip", "link", "add", "name", INTERFACE, "netns", name, "type", "veth", "peer", "name", port,
                "netns", middle,
            )  # fmt: skip
            _run("ip", "-n", middle, "link", "set", port, "master", "br0", "up")
            self._address(rank)
            if rate is not None:
                _shape(name, INTERFACE, rate)
                _shape(middle, port, rate)

    def _carry(self) -> None:
        network = self._network
        if network.bits_per_second is None:
            raise ValueError(f"network {network.name!r} has a delay and no rate; give both")
        command = [sys.executable, "-m", "benchmarks.communication.delay_switch"]
        command += [str(network.bits_per_second), str(network.delay_seconds), _SUBNET, *self._names]
        self._switch = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the switch ended with {self._switch.wait()}; what it printed says why")
        for rank, name in enumerate(self._names):
            self._address(rank)
            _shape(name, INTERFACE, network.bits_per_second)

    def _address(self, rank: int) -> None:
        _run("ip", "-n", self._names[rank], "addr", "add", f"{_SUBNET}.{rank + 1}/24", "dev", INTERFACE)
        _run("ip", "-n", self._names[rank], "link", "set", INTERFACE, "up")


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that what was made is removed."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shape(namespace: str, interface: str, bits_per_second: float) -> None:
    """The bucket holds 2 ms, since the kernel's timer would not keep up with less, and a packet, or none would pass."""
    burst = max(_MOST_PACKET, int(bits_per_second / 8 * 0.002))
    _run(
        "tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", "rate", f"{bits_per_second:.0f}bit",
        "burst", str(burst), "latency", _QUEUE,
    )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
