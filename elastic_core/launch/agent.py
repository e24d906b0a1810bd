"""The detached process that starts and watches the workers of one process group (`launch.workers.worker_group`).

It outlives whoever launched it, writes exit.json only when every process of the group is gone, then tells the
ledger; of slots that the group leaves before, a child of it does. Of workers that hang it ends those that a signal has
stopped; heartbeats show others. Nothing large is imported before the workers are gone: it must start fast and stay
small beside them. Its log is logs/agent.log of the run dir.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from elastic_core import logs
from elastic_core.host.messages import AgentProcess
from elastic_core.host.process import ProcessId, be_ended_as_others
from elastic_core.host.rundir import RunDir
from elastic_core.launch.workers.worker_group import SIGNALS, supervise


def daemonize() -> None:
    """Leave the caller's process tree, so that killing its tree, process group or session does not reach us."""
    if os.fork():
        os._exit(0)
    os.setsid()


def take_token() -> mmap.mmap:
    """What the launcher wrote to stdin, which is empty from now on: workers inherit it.

    In memory that forks do not get, and nowhere else: a worker that is forked and executes nothing has all the rest.
    """
    token = mmap.mmap(-1, mmap.PAGESIZE)
    token.madvise(mmap.MADV_DONTFORK)
    with memoryview(token) as room:
        length = 0
        while count := os.readv(0, [room[length:]]):
            length += count
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return token


def claim(run_dir: RunDir, lock_fd: int) -> None:
    """Record this agent, then let go of the launcher's lock: whoever takes it next finds agent.json."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # from now on others may signal us; nothing listens yet
    run_dir.write(AgentProcess(*ProcessId.current()))
    os.close(lock_fd)


def main(argv: Sequence[str]) -> None:
    """`--run-dir D --lock-fd N`, its token on stdin: called by the launcher only, hence no help."""
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    run_dir = RunDir(Path(options["--run-dir"]))
    daemonize()
    be_ended_as_others()
    token = take_token()
    logs.configure("agent")
    claim(run_dir, int(options["--lock-fd"]))
    of_the_group = token[0] != 0  # else it is one of several agents, and their coordinator tells (`launch.on_ray`)
    outcome = supervise(run_dir, token if of_the_group else None)

    from elastic_core.launch.delivery import deliver
    from elastic_core.launch.exit_classification import report_exit

    report = report_exit(run_dir, outcome)
    if of_the_group:
        deliver(run_dir, report, token[:].rstrip(b"\0").decode())


if __name__ == "__main__":
    main(sys.argv[1:])
