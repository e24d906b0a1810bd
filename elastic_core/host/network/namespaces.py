"""Network namespaces by name, as `ip netns` keeps them: a means to try several hosts on one machine, no isolation.

A process that has entered one sees the namespace's interfaces and no others, loopback among them; files and Unix
sockets with a path stay as they are. Entering takes root (CAP_SYS_ADMIN). Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from pathlib import Path

FOLDER = Path("/var/run/netns")  # iproute2's
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_setns = ctypes.CDLL(None, use_errno=True).setns


def enter(name: str) -> None:
    """Move this thread there, for good; what it forks and starts follows. Raises `OSError`."""
    namespace = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _setns(namespace, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"entering the network namespace {name!r}: {os.strerror(number)}")
    finally:
        os.close(namespace)


def why_unusable(address: str, namespace: str | None) -> str | None:
    """Why nobody here could listen at the address, in the namespace if one is given; None where one could."""
    found: list[str | None] = []
    asking = threading.Thread(target=lambda: found.append(_why_unusable(address, namespace)))
    asking.start()  # a thread of its own: whoever has entered does not come back
    asking.join()
    return found[0]


def _why_unusable(address: str, namespace: str | None) -> str | None:
    if namespace is not None:
        try:
            enter(namespace)
        except FileNotFoundError:
            return f"there is no network namespace {namespace!r} in {FOLDER}; make it: `ip netns add {namespace}`"
        except PermissionError as error:
            return f"{error}; only root (CAP_SYS_ADMIN) may start processes in one: start the services as root"
        except OSError as error:
            return str(error)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as trying:
            trying.bind((address, 0))
    except OSError as error:
        where = f"the network namespace {namespace!r}" if namespace is not None else "this machine"
        return f"{where} has no interface with the address {address} ({error.strerror}); `ip addr` lists what it has"
    return None
