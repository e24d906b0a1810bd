"""What keeps strangers out of a group whose connections are gloo's.

gloo authenticates nobody, and torch's wheel has it without TLS: its listener takes whoever connects first with the
right small number for the peer. So the ranks show each other, over every connection that has come about, that they know
the group's token; whoever does not is no peer, and the group does not form. After that nobody has a reason to connect:
the kernel drops what tries (a socket filter, Linux's SO_ATTACH_FILTER), so that the rank's file descriptors cannot be
used up either. A stranger who reaches a rank's address can make the forming fail within its few milliseconds, and take
no part. Where listeners lie is looked at as well: no wider than at the node's own address.
NCCL asks whoever connects for a number that only the store gives.
"""

from __future__ import annotations

import ctypes
import hmac
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address

import torch
import torch.distributed as dist

from elastic_core.errors import InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK

PROOF_SECONDS = 60.0
_PROOF_BYTES = 32
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; the module `socket` does not have it
_RETURN_CONSTANT = 0x06  # BPF_RET | BPF_K, linux/bpf_common.h
_log = logging.getLogger(__name__)


def prove_peers(token: bytes, what: str, group: dist.ProcessGroup | None = None) -> None:
    """Every two ranks of the group (None: of all) show each other the token, over their own connection. Collective.

    `what` names the group: a proof for one is none for another. Raises `InfrastructureError` when a rank's other end
    does not know the token, `RuntimeError` (torch's) when it does not speak or is gone.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if world == 1:
        return
    proofs = b"".join(_proof(token, what, rank, peer) for peer in range(world))
    received = torch.empty(world * _PROOF_BYTES, dtype=torch.uint8)
    work = dist.all_to_all_single(
        received, torch.frombuffer(bytearray(proofs), dtype=torch.uint8), group=group, async_op=True
    )
    assert work is not None
    work.wait(timedelta(seconds=PROOF_SECONDS))
    for peer, proof in enumerate(received.view(world, _PROOF_BYTES)):
        if not hmac.compare_digest(proof.numpy().tobytes(), _proof(token, what, peer, rank)):
            raise InfrastructureError(
                f"What is connected as rank {peer} of {what} does not know the group's token: a process that does not "
                f"belong to the job has taken its place. The group forms anew with the next attempt; find out who else "
                f"has processes on this host."
            )


@contextmanager
def closed_afterwards(address: str = LOOPBACK) -> Iterator[None]:
    """Listeners on the network that come into being in here take no further connection once this is over.

    Raises `InfrastructureError` where one is at another address of this host than `address`.
    """
    before = set(_listeners())
    yield
    elsewhere = []
    for inode, fd in _listeners().items():
        if inode not in before:
            _drop_everything(fd)
            host = _host(fd)
            if host != ip_address(address):
                elsewhere.append(str(host))
    if elsewhere:
        raise InfrastructureError(
            f"Ranks were to meet at {address}, and this one listens at {', '.join(sorted(elsewhere))}: its network "
            f"interface has several addresses. Give the node the first of them in the cluster file."
        )


def _proof(token: bytes, what: str, sender: int, receiver: int) -> bytes:
    return hmac.digest(token, f"{what}: {sender} to {receiver}".encode(), "sha256")


def _listeners() -> dict[str, int]:
    """This process's sockets that listen on the network: the kernel's name of each, and its descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or no socket
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:") and _listens(int(name)):
                found[link] = int(name)
    return found


def _listens(fd: int) -> bool:
    with closing(socket.socket(fileno=os.dup(fd))) as duplicate:
        of_network = duplicate.family in (socket.AF_INET, socket.AF_INET6)
        return of_network and duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def _host(fd: int) -> IPv4Address | IPv6Address:
    with closing(socket.socket(fileno=os.dup(fd))) as duplicate:
        return ip_address(duplicate.getsockname()[0])


def _drop_everything(fd: int) -> None:
    """The kernel answers nobody who tries to connect to this listener from now on; its connections stay as they are."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0))  # keep 0 bytes of each
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    with closing(socket.socket(fileno=os.dup(fd))) as duplicate:
        try:
            duplicate.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        except OSError as error:
            _log.warning("the kernel has no socket filters (%s): %s stays open", error, duplicate.getsockname())
