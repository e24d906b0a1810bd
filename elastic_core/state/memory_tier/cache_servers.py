"""The cache servers of this installation's nodes: started with a job's processes, told which jobs are active, ended.

Every node of a cluster is this host (`launch.local`), so each has its cache server (`state.memory_tier.cache_server`)
here, and its share of this memory. All of it is a convenience: what fails here is logged, and the job reads from the
store.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.detached import shared_secret
from elastic_core.host.environment import allowed
from elastic_core.host.messages import CacheServerAddress
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.host.process import ProcessId, end_processes
from elastic_core.host.rundir import RunDir
from elastic_core.host.this_machine import read_cluster
from elastic_core.host.worker_user.giving import let_pass
from elastic_core.host.worker_user.identity import WorkerUser, uid_of_jobs
from elastic_core.logs import get_logger
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.settings import Settings
from elastic_core.state.memory_tier.cache_client import FAULTS, Access, CacheClient
from elastic_core.state.memory_tier.cache_server import ADMIN, job_key

log = get_logger(__name__)

CACHE_SERVER = (sys.executable, "-m", "elastic_core.state.memory_tier.cache_server")
START_SECONDS = 20.0
END_SECONDS = 5.0
FEW_NODES = 8  # of a larger cluster a job has cache servers on its own nodes, and on as many others as hold copies


def folder_of(settings: Settings) -> Path:
    return settings.home.absolute() / "memory"


def prepare(settings: Settings, order: LaunchOrder, run_dir: RunDir) -> list[subprocess.Popen[bytes]]:
    """Start the cache servers that this order's processes may use; write memory.json, with a key of their job alone.

    As `start`. Without memory.json the processes use the store alone.
    """
    return prepare_on(settings, order, run_dir, _nodes(settings, order), None)


def prepare_on(
    settings: Settings, order: LaunchOrder, run_dir: RunDir, nodes: Sequence[str],
    here: Mapping[str, str | None] | None,
) -> list[subprocess.Popen[bytes]]:  # fmt: skip
    """As `prepare`, where these `nodes` may hold copies, and only those of `here`, with their addresses, are this host.

    `here` None: all of them are, with the addresses of the cluster file.
    """
    if settings.node_memory_mb == 0:
        return []
    try:
        job = order.job_id
        access = Access(folder_of(settings), tuple(nodes), job, job_key(_secret(settings), job))
        starting = start(settings, nodes if here is None else here, here)
        run_dir.write(access)
    except (OSError, InfrastructureError) as error:
        log.warning(f"no checkpoint is held in memory: {error}", job=order.job_id)
        return []
    return starting


def start(
    settings: Settings, nodes: Iterable[str], at: Mapping[str, str | None] | None = None
) -> list[subprocess.Popen[bytes]]:
    """Start the cache servers of these nodes that do not run. A process ends when its server can be reached: `wait`.

    `at`: their addresses; None for those of the cluster file.
    """
    folder = folder_of(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    user = WorkerUser.of(settings)
    if user is not None:
        let_pass(folder, user)  # to the addresses, by the nodes' names
    _secret(settings)  # which they read
    missing = [node for node in nodes if not _running(folder, node)]
    addresses = at if at is not None else addresses_of(settings) if missing else {}
    return [_spawn(settings, folder, node, addresses.get(node) or LOOPBACK) for node in missing]


def addresses_of(settings: Settings) -> dict[str, str]:
    """Of the cluster's nodes that have one, by name; none for a cluster file that cannot be read: others say so."""
    if settings.cluster is None:
        return {}
    with suppress(UserError):
        return read_cluster(settings.cluster).addresses()
    return {}


def wait(starting: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in starting:
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            log.warning(f"a cache server did not start within {START_SECONDS:g} s")


def retain_jobs(settings: Settings, jobs: Collection[str]) -> None:
    """These jobs are active: cache servers drop the entries of others. One that has died is started again."""
    folder = folder_of(settings)
    nodes = [path.stem for path in sorted(folder.glob("*.json"))]
    if settings.node_memory_mb == 0 or not nodes:
        return
    try:
        wait(start(settings, nodes) if jobs else ())
        for node in nodes:
            client = CacheClient(Access(folder, (), ADMIN, job_key(_secret(settings), ADMIN)), node, near=True)
            with suppress(*FAULTS):  # it has ended, and holds nothing
                client.ask(op="only", jobs=sorted(jobs))
            client.close()
    except (OSError, InfrastructureError) as error:
        log.warning(f"the cache servers were not told which jobs are active: {error}")


def stop(settings: Settings) -> None:
    """End every cache server; what they hold is gone."""
    folder = folder_of(settings)
    servers = [process for path in folder.glob("*.json") if (process := _process(folder, path.stem))]
    end_processes(servers, END_SECONDS)


def _nodes(settings: Settings, order: LaunchOrder) -> tuple[str, ...]:
    """The order's own, and others that may hold copies, or that the processes may grow into."""
    own = sorted({slot.node for slot in order.allocation.slots})
    others: set[str] = set()
    if settings.cluster is not None:
        with suppress(UserError):  # others say so
            others = {node.name for node in read_cluster(settings.cluster).nodes} - set(own)
    most = max(FEW_NODES, len(own) + order.spec.checkpoints.memory_copies)
    return (*own, *sorted(others))[:most]


def _secret(settings: Settings) -> bytes:
    return shared_secret(settings.secret_file("memory"))


def _process(folder: Path, node: str) -> ProcessId | None:
    address = RunDir(folder).read(CacheServerAddress, node)
    return address.process if address else None


def _running(folder: Path, node: str) -> bool:
    process = _process(folder, node)
    return process is not None and process.alive()


def _spawn(settings: Settings, folder: Path, node: str, host: str) -> subprocess.Popen[bytes]:
    options = {
        "--folder": str(folder),
        "--node": node,
        "--secret": str(settings.secret_file("memory")),
        "--limit": str(settings.node_memory_mb << 20),
        "--host": host,  # what `ELASTIC_HOST` opens is the services', not this
        "--worker-uid": str(uid_of_jobs(settings)),
    }
    with (folder / f"{node}.log").open("ab") as output:
        return subprocess.Popen(
            [*CACHE_SERVER, *(word for option in options.items() for word in option)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=allowed(os.environ),
            cwd=settings.project.absolute(),
            start_new_session=True,
        )
