"""From root to another user, for good: what is done before users' code is loaded.

The uids and gids (real, effective, saved), no supplementary groups, hence no capability; `no_new_privs`, so that no
program gives any back; umask 077. Standard library only: agents import this.
"""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 2, 4, 38
_prctl = ctypes.CDLL(None, use_errno=True).prctl
UMASK = 0o077


def drop(uid: int, gid: int) -> None:
    """Become this user. Raises `OSError` or `ValueError` where that is not what came about; then nothing may follow.

    The kernel forgets at a change of user that this process dies with its parent, and lets nobody trace it; both are
    put back, as an execution would leave them.
    """
    if uid <= 0 or gid <= 0:
        raise ValueError(f"uid {uid} and gid {gid} are not those of an unprivileged user")
    parent, dies_by = os.getppid(), ctypes.c_int(0)
    _call(_PR_GET_PDEATHSIG, ctypes.addressof(dies_by))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _call(_PR_SET_NO_NEW_PRIVS, 1)
    _call(_PR_SET_DUMPABLE, 1)  # ranks map each other's memory through /proc
    os.umask(UMASK)
    if dies_by.value:
        _call(_PR_SET_PDEATHSIG, dies_by.value)
        if os.getppid() != parent:  # it died in between: no signal will come any more
            os._exit(1)
    if (os.getresuid(), os.getresgid(), os.getgroups()) != ((uid,) * 3, (gid,) * 3, []):
        raise ValueError(f"uids are {os.getresuid()}, gids {os.getresgid()}, groups {os.getgroups()} instead of {uid}")


def _call(option: int, argument: int) -> None:
    if _prctl(ctypes.c_int(option), ctypes.c_ulong(argument), *[ctypes.c_ulong(0)] * 3) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
