"""The one small message of a step: what every rank tells all others after backward, and what follows from it.

All ranks see the same rows, so all take the same decision at the same step: a request that rank 0 has heard before
its message of step k is obeyed by everyone right after step k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from elastic_core.domain import Layout
from elastic_core.state.layout.layout import DATA, Mesh
from elastic_core.train.gradients.noise import Part
from elastic_core.train.lease.stop_requests import StopRequest
from elastic_core.train.parallel.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMessage:
    """One rank's row of float64."""

    stop_request: float  # a `StopRequest`
    segment_over: float  # rank 0's clock: the segment has lasted as long as it should
    steady: float  # rank 0's: the next segment is to get just what this one has
    checkpoint_due: float  # rank 0's: an interval checkpoint is due
    save_ready: float  # this rank has done its part of the checkpoint under way
    loss: float  # share of the batch's mean loss
    samples: float
    sqr_norm: float  # of the mean gradient over this rank's samples, as far as this rank holds it
    buffers_changed: float
    memory_bytes: float
    wait_seconds: float  # for gradients, this rank's
    first_part: float = 0.0  # squared norms of the mean gradients over the fixed parts of the batch,
    last_part: float = 0.0  # 0 where a part is not this rank's


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    stop_request: StopRequest
    segment_over: bool
    steady: bool
    checkpoint_due: bool
    save_ready: bool
    loss: float
    parts: tuple[Part, ...]
    buffers_changed: bool
    memory_bytes: int
    # What the exchange of gradients took: the least wait of rank 0 and those that it exchanges them with, since who
    # comes last waits for no other rank. How far ranks come one after the other is a part of their computing.
    wait_seconds: float
    fixed_parts: tuple[float, float] = (0.0, 0.0)


def agree(group: Group, message: StepMessage, layout: Layout) -> Agreement:
    """One collective. Sums run in the order of ranks, so every rank gets the same bits."""
    rows = [StepMessage(**dict(zip(_NAMES, row, strict=True))) for row in group.gather_vectors(astuple(message))]
    return conclude(rows, layout)


def conclude(rows: Sequence[StepMessage], layout: Layout) -> Agreement:
    """`rows` by rank. The ranks of one replica say each their share of its gradient, and one of them its samples;
    parameter servers are no replica."""
    replicas = _replicas(rows, layout)
    return Agreement(
        stop_request=StopRequest(int(max(row.stop_request for row in rows))),
        segment_over=rows[0].segment_over > 0,
        steady=rows[0].steady > 0,
        checkpoint_due=rows[0].checkpoint_due > 0,
        save_ready=all(row.save_ready > 0 for row in rows),
        loss=sum(row.loss for row in rows),
        parts=tuple(_part(replica) for replica in replicas),
        buffers_changed=any(row.buffers_changed for row in rows),
        memory_bytes=int(max(row.memory_bytes for row in rows)),
        wait_seconds=min(replica[0].wait_seconds for replica in replicas),
        fixed_parts=(sum(row.first_part for row in rows), sum(row.last_part for row in rows)),
    )


def _replicas(rows: Sequence[StepMessage], layout: Layout) -> list[list[StepMessage]]:
    mesh = Mesh.of(layout)
    replicas: list[list[StepMessage]] = [[] for _ in range(layout.data)]
    for rank, row in enumerate(rows[: layout.world_size - layout.servers]):
        replicas[mesh.coordinates(rank)[DATA]].append(row)
    return replicas


def _part(replica: Sequence[StepMessage]) -> Part:
    return Part(int(sum(row.samples for row in replica)), sum(row.sqr_norm for row in replica))


_NAMES = [field.name for field in fields(StepMessage)]
