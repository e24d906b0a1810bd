"""What to run for one slot of a group: command, environment, cores.

Only that: `launch.workers.worker_group` forks and execs it. RANK, WORLD_SIZE and LOCAL_RANK are set as torchrun sets
them, so that code which reads them works; a standby worker has no rank yet. Standard library only: see `launch.agent`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from elastic_core.host.messages import SlotId, SpawnPlan
from elastic_core.host.pinning import cores, device_variables

# In the run dir, where workers have a network namespace: `launch.workers.control_relay`.
CONTROL_SOCKET = "control.sock"
WORKER = "ELASTIC_WORKER_NUMBER"  # marks a worker and all that it starts: see `process.marked`
CPU_NICE = 5  # training on CPU slots gives way to the services that share the machine


class WorkerCommand(NamedTuple):
    """One process to start."""

    argv: list[str]
    env: dict[str, str]  # besides the agent's own
    cpus: tuple[int, ...]  # () for any
    log: str
    cwd: str
    nice: int
    user: tuple[int, ...] = ()  # uid and gid to become; () for the agent's
    namespace: str = ""  # network namespace to enter; "" for the agent's


def worker_command(plan: SpawnPlan, run_dir: Path, number: int, slot: SlotId, world_size: int | None) -> WorkerCommand:
    """Worker `number` of a group, on its slot.

    `world_size` is None for a standby worker: it waits until its slot is the group's, and learns its rank then.
    """
    ranks = {} if world_size is None else {"RANK": str(number), "WORLD_SIZE": str(world_size)}
    standby = ["--slot", str(slot)] if world_size is None else []
    network = plan.networks.get(slot.node)
    place = [] if network is None else ["--address", network.address]
    if network is not None and network.namespace:
        place += ["--control-socket", str(run_dir / CONTROL_SOCKET)]
    return WorkerCommand(
        argv=[*plan.argv, "--run-dir", str(run_dir), "--rank", str(number), *standby, *place],
        env={**ranks, "PYTHONUNBUFFERED": "1", **plan.env, WORKER: str(number), **device_variables(slot, os.environ)},
        cpus=cores(slot, [SlotId(*cpu_slot) for cpu_slot in plan.cpu_slots], sorted(os.sched_getaffinity(0))),
        log=str(run_dir / "logs" / f"rank{number}.log"),
        cwd=plan.cwd,
        nice=CPU_NICE if slot.type == "cpu" else 0,
        user=plan.user,
        namespace=network.namespace if network is not None else "",
    )
