"""What to run for one slot of a group: command, environment, cores. Standard library only: see `launch.agent`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from elastic_core.launch.pinning import cores, device_variables

CPU_NICE = 5  # training on CPU slots gives way to the services that share the machine


@dataclass(frozen=True, slots=True)
class Place:
    """A slot, as order.json names it."""

    node: str
    index: int
    type: str

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


class Worker(NamedTuple):
    """One process to start."""

    argv: list[str]
    env: dict[str, str]  # besides the agent's own
    cpus: tuple[int, ...]  # () for any
    log: str
    cwd: str
    nice: int


def slots_of(order: Mapping[str, Any]) -> list[Place]:
    """The slots of an order.json, by rank."""
    return [Place(**slot) for slot in order["allocation"]["slots"]]


def worker(spawn: Mapping[str, Any], run_dir: Path, number: int, place: Place, world_size: int | None) -> Worker:
    """Worker `number` of a group, on its slot. `spawn` is spawn.json.

    `world_size` is None for a worker that is started ahead: it waits until its slot is the group's, and learns its rank
    then.
    """
    first = world_size is not None
    ranks = {"RANK": str(number), "WORLD_SIZE": str(world_size)} if first else {}
    ahead = [] if first else ["--slot", str(place)]
    return Worker(
        argv=[*spawn["argv"], "--run-dir", str(run_dir), "--rank", str(number), *ahead],
        env={**ranks, "PYTHONUNBUFFERED": "1", **spawn["env"], **device_variables(place, os.environ)},
        cpus=cores(place, [Place(*slot) for slot in spawn["cpu_slots"]], sorted(os.sched_getaffinity(0))),
        log=str(run_dir / "logs" / f"rank{number}.log"),
        cwd=spawn["cwd"],
        nice=CPU_NICE if place.type == "cpu" else 0,
    )
