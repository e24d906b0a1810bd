"""What a session runs in: the order in force at its start, the ranks, the store, and rank 0's line to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic_core.domain import Allocation
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.trainer import Commit
from elastic_core.state.memory_tier.cached_store import MemoryTier
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.kept_state import KeptState
from elastic_core.train.lease.control_link import ControlLink
from elastic_core.train.lease.stop_requests import StopRequests
from elastic_core.train.parallel.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeContext:
    """`control_link` is rank 0's, None on the others. `started_at`: `time.perf_counter` when the process, or its
    restart in place, began. `memory`: the hosts' memory in front of the store, if there is some. `kept`: what this
    process kept of its last checkpoint, at a restart in place. `stepped`: called after each step
    and what follows it.
    """

    order: LaunchOrder
    group: Group
    store: CheckpointStore
    stop_requests: StopRequests
    control_link: ControlLink | None
    started_at: float
    memory: MemoryTier | None = None
    kept: KeptState | None = None
    stepped: Callable[[], None] = lambda: None

    def remember(self, commit: Commit, allocation: Allocation) -> None:
        """Rank 0's: what was just committed is the latest that the nodes' memory should hold."""
        if self.memory is not None and commit.finished:
            self.memory.finished()
        elif self.memory is not None:
            self.memory.committed(commit.uri, [slot.node for slot in allocation.slots])
