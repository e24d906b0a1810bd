"""The interface that has an address, which is how gloo and NCCL are told where to listen. Linux.

Of an interface with several addresses they take the first, so only that one counts here; who listens then looks at the
sockets themselves (`train.parallel.strangers`). Standard library only.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from elastic_core.errors import InfrastructureError

LOOPBACK = "127.0.0.1"  # the address of a node that has none of its own
_LO = "lo"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NAME_BYTES, _ADDRESS_AT = 16, 20  # of struct ifreq: the name's, and where the IPv4 address lies
_IPV6 = Path("/proc/self/net/if_inet6")


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str) -> str:
    """Its name in this process's network namespace. Raises `InfrastructureError` where none has it as its first."""
    if is_loopback(address):
        return _LO
    for name, first in _first_addresses():
        if first == ipaddress.ip_address(address):
            return name
    raise InfrastructureError(
        f"No network interface here has {address} as its first address, and the cluster file gives it as the node's. "
        f"`ip addr` lists what there is, and `ip -n NAME addr` what there is in a network namespace."
    )


def _first_addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    known = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_NAME_BYTES}s24x", name.encode())
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            known.add(name)
            yield name, ipaddress.IPv4Address(answer[_ADDRESS_AT : _ADDRESS_AT + 4])
    for line in _IPV6.read_text().splitlines() if _IPV6.exists() else ():
        digits, *_, name = line.split()
        if name not in known:
            yield name, ipaddress.IPv6Address(int(digits, 16))
