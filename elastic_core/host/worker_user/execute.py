"""`python -m elastic_core.host.worker_user.execute UID GID MODULE ...`: `python -m MODULE ...`, as another user.

For processes that root executes and waits for (`host.fork_client.run_module`). Users' code is loaded after the change.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from elastic_core.host.worker_user.dropping import drop


def command(ids: tuple[int, ...], module: str, argv: Sequence[str]) -> list[str]:
    """`python -m module argv`, as the user with this uid and gid, or with () as the caller's."""
    become = ["-m", "elastic_core.host.worker_user.execute", *map(str, ids)] if ids else ["-m"]
    return [sys.executable, *become, module, *argv]


def main(argv: Sequence[str]) -> None:
    uid, gid, module, *arguments = argv
    drop(int(uid), int(gid))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
