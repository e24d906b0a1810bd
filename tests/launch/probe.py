"""What a process finds, and ways to end: `python -m tests.launch.probe facts | exit N | raise | die | hang FILE`."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence

from elastic_core.host.process import FORKED_FROM
from elastic_core.launch import fork_server


def main(argv: Sequence[str]) -> int:
    what, *arguments = argv
    if what == "exit":
        sys.exit(int(arguments[0]))
    if what == "raise":
        raise RuntimeError("it went wrong")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        os.fork()
        with open(arguments[0], "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    print(
        json.dumps(
            {
                "argv": sys.argv[1:],
                "env": sorted(f"{name}={value}" for name, value in os.environ.items() if name != FORKED_FROM),
                "cwd": os.getcwd(),
                "files": {number: os.readlink(f"/proc/self/fd/{number}") for number in _open_files()},
                "leads_session": os.getsid(0) == os.getpid(),
                "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD)],
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
                "umask": os.umask(0o077),
                "parent": os.getppid(),
                "random": random.random(),
                "forked": fork_server.can_run([sys.executable, "-m", "elastic_core.launch.agent"]),
            }
        )
    )
    return 0


def _open_files() -> list[int]:
    numbers = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
            numbers.append(int(name))
        except OSError:
            continue  # the listing's own
    return sorted(numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
