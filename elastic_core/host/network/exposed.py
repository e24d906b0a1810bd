"""Whether ranks that meet at an address send gradients over a network that strangers may read: gloo does not encrypt.

Private addresses are taken for a private network, and interfaces of encrypted overlays go by their names: neither is
proved. Standard library only.
"""

from __future__ import annotations

import ipaddress
import re

from elastic_core.errors import InfrastructureError
from elastic_core.host.network.interfaces import interface_of

PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",
        "169.254.0.0/16",  # link-local
        "100.64.0.0/10",  # of carriers, and of Tailscale
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
OVERLAYS = re.compile(r"(wg|tailscale|ts|ipsec|xfrm|vti|nebula|zt)\w*", re.ASCII)


def is_exposed(address: str) -> bool:
    """Neither loopback nor private (RFC 1918, unique local, link-local, shared), nor on an encrypted overlay here."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    if any((mapped or found) in network for network in PRIVATE):
        return False
    try:
        return OVERLAYS.fullmatch(interface_of(address)) is None
    except InfrastructureError:  # it is another machine's, or in a network namespace
        return True
