"""What the kernel says of processes that tests have started."""

from __future__ import annotations

from elastic_core.host import process
from elastic_core.host.process import ProcessId


def children(parent: int) -> list[int]:
    """Direct children, zombies excluded."""
    return [pid for pid in sorted(process.listed_children(parent)) if ProcessId.of(pid) is not None]
