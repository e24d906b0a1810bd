"""The keepers of this installation's nodes (`launch.keeper`): started with a job's processes, told who lives, ended.

Every node of a cluster is this host (`launch.local`), so each has its keeper here, and its share of this memory. All of
it is a convenience: what fails here is said, and the job reads from the store.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from elastic_core.control.contract import LaunchOrder
from elastic_core.errors import UserError
from elastic_core.launch.environment import allowed
from elastic_core.launch.keeper import ADMIN, job_key
from elastic_core.launch.process import ProcessId
from elastic_core.launch.rundir import RunDir
from elastic_core.services.cluster import read_cluster
from elastic_core.settings import Settings
from elastic_core.state.keeper_client import FAULTS, Access, KeeperClient

KEEPER = (sys.executable, "-m", "elastic_core.launch.keeper")
START_SECONDS = 20.0
END_SECONDS = 5.0
FEW_NODES = 8  # of a larger cluster a job has keepers on its own nodes, and on as many others as shall keep copies


def folder_of(settings: Settings) -> Path:
    return settings.home.absolute() / "memory"


def prepare(settings: Settings, order: LaunchOrder, run_dir: RunDir) -> list[subprocess.Popen[bytes]]:
    """Start the keepers that this order's processes may use, and write memory.json, with a key of their job alone.

    As `start`. Without memory.json the processes use the store alone.
    """
    if settings.node_memory_mb == 0:
        return []
    try:
        nodes, job = _nodes(settings, order), order.job_id
        access = Access(folder_of(settings), nodes, job, job_key(_secret(settings), job))
        starting = start(settings, nodes)
        run_dir.write("memory.json", access.to_json())
    except OSError as error:
        _say(f"no checkpoint of {order.job_id} is kept in memory: {error}")
        return []
    return starting


def start(settings: Settings, nodes: Iterable[str]) -> list[subprocess.Popen[bytes]]:
    """Start the keepers of these nodes that do not run. Each process ends when its keeper can be reached: `wait`."""
    folder = folder_of(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _secret(settings)  # which they read
    return [_spawn(settings, folder, node) for node in nodes if not _running(folder, node)]


def wait(starting: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in starting:
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            _say(f"a keeper of node memory did not start within {START_SECONDS:g} s")


def only(settings: Settings, jobs: Collection[str]) -> None:
    """These jobs are active: keepers drop what they keep of others. One that has died is started again."""
    folder = folder_of(settings)
    nodes = [path.stem for path in sorted(folder.glob("*.json"))]
    if settings.node_memory_mb == 0 or not nodes:
        return
    try:
        wait(start(settings, nodes) if jobs else ())
        for node in nodes:
            client = KeeperClient(Access(folder, (), ADMIN, job_key(_secret(settings), ADMIN)), node, near=True)
            with suppress(*FAULTS):  # it has ended, and keeps nothing
                client.ask(op="only", jobs=sorted(jobs))
            client.close()
    except OSError as error:
        _say(f"keepers of node memory were not told which jobs live: {error}")


def stop(settings: Settings) -> None:
    """End every keeper; what they keep is gone."""
    folder = folder_of(settings)
    found = [process for path in folder.glob("*.json") if (process := _process(folder, path.stem))]
    for process in found:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while any(process.alive() for process in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in found:
        process.send(signal.SIGKILL)


def _nodes(settings: Settings, order: LaunchOrder) -> tuple[str, ...]:
    """The order's own, and others that may keep copies, or that the processes may grow into."""
    own = sorted({slot.node for slot in order.allocation.slots})
    others: set[str] = set()
    if settings.cluster is not None:
        with suppress(UserError):  # others say so
            others = {node.name for node in read_cluster(settings.cluster).nodes} - set(own)
    most = max(FEW_NODES, len(own) + order.spec.checkpoints.memory_copies)
    return (*own, *sorted(others))[:most]


def _secret(settings: Settings) -> bytes:
    """The installation's, made by whoever needs it first."""
    path = settings.secret_file("memory")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_urlsafe(48))
        with suppress(FileExistsError):  # another has just done the same
            os.link(temporary, path)
        temporary.unlink()
    return path.read_bytes()


def _process(folder: Path, node: str) -> ProcessId | None:
    recorded = RunDir(folder).read(f"{node}.json")
    return ProcessId(recorded["pid"], recorded["start_time"]) if recorded else None


def _running(folder: Path, node: str) -> bool:
    process = _process(folder, node)
    return process is not None and process.alive()


def _spawn(settings: Settings, folder: Path, node: str) -> subprocess.Popen[bytes]:
    options = {
        "--folder": str(folder),
        "--node": node,
        "--secret": str(settings.secret_file("memory")),
        "--limit": str(settings.node_memory_mb << 20),
        "--host": settings.host,
    }
    with (folder / f"{node}.log").open("ab") as output:
        return subprocess.Popen(
            [*KEEPER, *(word for option in options.items() for word in option)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=allowed(os.environ, settings),
            cwd=settings.project.absolute(),
            start_new_session=True,
        )


def _say(text: str) -> None:
    print(f"elastic: {text}", file=sys.stderr, flush=True)
