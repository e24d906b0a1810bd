"""Orders to launch and launchers of scripted workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.host import fork_client
from elastic_core.host.messages import AgentProcess, WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.launch.launcher import GroupStatus, Launcher
from elastic_core.launch.local import LocalLauncher
from elastic_core.launch.on_ray.ray_launcher import RayLauncher
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.records import JobFacts, RestorePoint
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from tests.e2e.platform import PATIENCE
from tests.processes import children

SCRIPT = Path(__file__).with_name("scripted_worker.py")
SCRIPTS = "tests.launch.scripted_worker"
TOKEN = "the-token-of-this-segment"
AGENT_TOKEN = "the-token-of-its-agent"


def order(num_slots: int = 2, origin_epoch: int = 7, slot_type: str = "cpu") -> LaunchOrder:
    slots = tuple(Slot("n0", index, slot_type) for index in range(num_slots))
    spec = {
        "name": "digits",
        "entry_point": "examples.digits:Digits",
        "work": {"epochs": 1},
        "batch": {"min": 8, "max": 8},
    }
    return LaunchOrder(
        segment_id="job__seg_0",
        job_id="job",
        index=0,
        lineage=0,
        epoch=origin_epoch,
        origin_epoch=origin_epoch,
        attempt=0,
        spec=JobSpec.model_validate(spec),
        facts=JobFacts(dataset_samples=100),
        allocation=Allocation(slots=slots, global_batch=8, layout=Layout(data=num_slots)),
        total_samples=100,
        restore=RestorePoint(candidates=()),
        warm_start=None,
        segment_seconds=None,
        segment_steps=None,
        token=TOKEN,
        agent_token=AGENT_TOKEN,
        lease_seconds=90.0,
        heartbeat_seconds=2.0,
    )


def settings(home: Path, control_url: str = "http://127.0.0.1:9") -> Settings:
    """Nothing listens at the default address: agents keep their reports, and end when they are told to."""
    return Settings(home=home, control_url=control_url, grace_seconds=60.0, node_memory_mb=0)


def scripted(home: Path, behaviours: str, control_url: str = "http://127.0.0.1:9") -> LocalLauncher:
    """Workers are executed, or forked by their agent where `home` has a fork server (of scripts)."""
    script = ("-m", SCRIPTS) if fork_client.folder_of(home).exists() else ("-S", str(SCRIPT))
    return LocalLauncher(settings(home, control_url), worker_command=(sys.executable, *script, behaviours))


def wait_for(condition: Callable[[], object], seconds: float = 20.0, pause: float = 0.005) -> float:
    """Seconds until the condition held; fails when it does not in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"did not happen within {seconds} s"
        time.sleep(pause)
    return time.monotonic() - start


def wait_until_dead(launcher: Launcher, origin_epoch: int = 7, seconds: float = 20.0) -> GroupStatus:
    if isinstance(launcher, RayLauncher):  # it is asked over HTTP, and starts a process of Ray's for each group
        wait_for(lambda: not launcher.poll(origin_epoch).alive, 3 * PATIENCE * seconds, pause=0.2)
    else:
        wait_for(lambda: not launcher.poll(origin_epoch).alive, seconds)
    return launcher.poll(origin_epoch)


def wait_until_ready(launcher: LocalLauncher, num_ranks: int = 2, origin_epoch: int = 7) -> list[ProcessId]:
    """The workers, once all of them are past their preparations, and their agent has written down that they live."""
    folder = RunDir.of(launcher.home, origin_epoch)
    wait_for(lambda: all((folder.path / f"ready{rank}").exists() for rank in range(num_ranks)))
    wait_for(lambda: (recorded := folder.read(WorkerProcesses)) and len(recorded.workers) >= num_ranks)
    return workers_of(folder)


def workers_of(folder: RunDir) -> list[ProcessId]:
    """The living workers, in the order of their start."""
    return [worker.process for worker in folder.require(WorkerProcesses).workers]


def agent_of(launcher: LocalLauncher, origin_epoch: int = 7) -> ProcessId:
    return RunDir.of(launcher.home, origin_epoch).require(AgentProcess).process


def the_stray(launcher: LocalLauncher, workers: list[ProcessId]) -> ProcessId:
    """What a worker has started, whose parent the agent is now."""
    known = {worker.pid for worker in workers}
    (pid,) = (pid for pid in children(agent_of(launcher).pid) if pid not in known)
    found = ProcessId.of(pid)
    assert found is not None
    return found
