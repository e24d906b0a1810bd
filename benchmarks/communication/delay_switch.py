"""A switch in user space that delays packets, for kernels without netem.

    python -m benchmarks.communication.delay_switch BITS_PER_SECOND DELAY_SECONDS SUBNET NAMESPACE ...

Makes a TUN device in every namespace, reads IPv4 packets from all, and writes each to the namespace of its last
address byte (SUBNET.1 is the first's) when its time has come: a fixed delay, then as fast as the receiver's link takes
it. Order is kept, nothing is lost. Packets have up to 60,000 bytes, so that a gigabit is two thousand of them a second.
Prints "ready" when the devices are there, which go when it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from benchmarks.communication.namespaces import INTERFACE, TUN

MTU = 60_000
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFMTU = 0x8922
_DESTINATION = slice(16, 20)  # of an IPv4 header


class Port:
    """One rank's device, and the packets on their way to it, by the time at which each has arrived."""

    def __init__(self, device: int, bits_per_second: float) -> None:
        self.device = device
        self._seconds_per_byte = 8 / bits_per_second
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def take(self, packet: bytes, at: float) -> None:
        self._free_at = max(at, self._free_at) + len(packet) * self._seconds_per_byte
        self._waiting.append((self._free_at, packet))

    def deliver(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            os.write(self.device, self._waiting.popleft()[1])

    @property
    def next_at(self) -> float:
        return self._waiting[0][0] if self._waiting else float("inf")


def carry(ports: Sequence[Port], subnet: bytes, delay_seconds: float) -> None:
    """For ever."""
    devices = {port.device: port for port in ports}
    while True:
        wait = min(port.next_at for port in ports) - time.monotonic()
        readable, _, _ = select.select(devices, [], [], None if wait == float("inf") else max(0.0, wait))
        now = time.monotonic()
        for device in readable:
            packet = os.read(device, MTU)
            target = packet[_DESTINATION]
            if packet[0] >> 4 == 4 and target[:3] == subnet and 1 <= target[3] <= len(ports):
                ports[target[3] - 1].take(packet, now + delay_seconds)
        for port in ports:
            port.deliver(now)


def tun_in(namespace: str) -> int:
    """A TUN device of that namespace, opened. This thread is in it afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as entry:
        if libc.setns(entry.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
    device = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFMTU, struct.pack("16si20x", INTERFACE.encode(), MTU))
    return device


def main(arguments: Sequence[str]) -> None:
    rate, delay, subnet, *namespaces = arguments
    ports = [Port(tun_in(namespace), float(rate)) for namespace in namespaces]
    print("ready", flush=True)
    carry(ports, bytes(int(part) for part in subnet.split(".")), float(delay))


if __name__ == "__main__":
    main(sys.argv[1:])
