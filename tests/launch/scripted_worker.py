"""A worker that does as it is told: `scripted_worker.py BEHAVIOURS --run-dir D --rank R`, behaviours by rank, by comma.

A standby worker (`--slot S` behind that) does the same.

sleep: until a signal ends it | boundary: exit 0 on SIGTERM | stubborn: ignores SIGTERM | exit:N |
error:N: with an error file | parent: starts a grandchild in a session of its own, then sleeps |
daemon: the same, and the grandchild has cleared its environment | headless: as daemon, with its main thread ended |
chains: as daemon, and instead of sleeping it forks another one and ends, which does the same, each writing a byte to
`chain` in the run dir; there are three of these, and where one has broken another begins it again |
helper: starts a child in its own session, then ends with 0 on SIGUSR1 |
lease:N: holds the lease for N seconds more, as rank 0 says it, and does not end with it
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SLEEP = "import time; time.sleep(600)"
HEADLESS = f"""
import ctypes, threading
def sleep():
    {SLEEP}
threading.Thread(target=sleep).start()
ctypes.CDLL(None).syscall({60 if os.uname().machine == "x86_64" else 93}, 0)  # exit, of this thread alone
"""
CHAINS = """
import fcntl, os, time
folder, number, until = "FOLDER", 0, time.monotonic() + 20  # they end by themselves, should nobody end them
told = os.open(folder + "/chain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def take(number):
    held = os.open(folder + "/held" + str(number), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until all that have inherited it are gone
        return held
    except BlockingIOError:
        os.close(held)

held = take(0)
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(told, b".")
    for other in range(3):
        if other != number and (free := take(other)) is not None:
            if os.fork() == 0:
                os.close(held)
                held, number = free, other
                break
            os.close(free)
"""
HIDDEN = {"daemon": SLEEP, "headless": HEADLESS, "chains": CHAINS}


def fork_daemon(environ: dict[str, str], code: str = SLEEP) -> None:
    """A grandchild that has left session, parent and, as told, environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-S", "-c", code], environ)
        os._exit(0)
    os.wait()


def main() -> int:
    behaviours, run_dir, rank = sys.argv[1].split(","), Path(sys.argv[3]), int(sys.argv[5])
    behaviour, _, argument = behaviours[rank % len(behaviours)].partition(":")
    print(f"rank {rank} of {os.environ.get('WORLD_SIZE', 'those to come')} does {behaviour}", flush=True)
    if behaviour == "boundary":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    elif behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif behaviour == "error":
        (run_dir / f"error-rank{rank}.json").write_text(
            json.dumps({"error": "ValueError: too big", "traceback": "..."})
        )
        return int(argument)
    elif behaviour == "exit":
        return int(argument)
    elif behaviour == "parent":
        fork_daemon(dict(os.environ))
    elif behaviour in HIDDEN:
        fork_daemon({}, HIDDEN[behaviour].replace("FOLDER", str(run_dir)))
    elif behaviour == "helper":
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
        if os.fork() == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            time.sleep(600)
    elif behaviour == "lease":
        start_time = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        held = {"pid": os.getpid(), "start_time": start_time, "until": time.monotonic() + float(argument)}
        (run_dir / "lease.json").write_text(json.dumps(held))
    (run_dir / f"ready{rank}").touch()
    time.sleep(600)
    return 0


def forked_main(_argv: object) -> int:
    return main()


if __name__ == "__main__":
    sys.exit(main())
