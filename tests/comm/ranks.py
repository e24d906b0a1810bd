"""Real ranks for the tests of exchanges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from elastic_core.host.rundir import RunDir
from elastic_core.train.parallel.group import Group
from tests.train import forked


def run(check: Callable[..., None], folder: Path, world: int, *arguments: Any) -> None:
    """`check(rank, world, *arguments)` in a process for each rank of a gloo group; it raises for what is wrong."""
    processes = [
        forked.start(_in_group, check, str(folder), rank, world, *arguments, log=folder / f"log{rank}")
        for rank in range(world)
    ]
    codes = forked.join(processes, 120.0)
    assert codes == [0] * world, [path.read_text() for path in sorted(folder.glob("log*"))]


def _in_group(check: Callable[..., None], folder: str, rank: int, world: int, *arguments: Any) -> int:
    torch.set_num_threads(1)  # as a worker's exchange thread has it: sums depend on it
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    check(rank, world, *arguments)
    group.gather_bytes(b"done")  # so that nobody leaves while another still exchanges
    group.close()
    return 0
