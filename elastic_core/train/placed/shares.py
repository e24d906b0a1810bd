"""Which samples of a step each rank of each stage works on, and what goes from which rank to which. Plain arithmetic.

A step's batch is divided into micro-batches, the same for all stages; every stage divides each of them over its own
ranks, however many those are. So what a rank of one stage has computed goes in pieces to those ranks of the next stage
whose samples overlap its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_core.state.order.sample_order import rank_share
from elastic_core.train.data.batches import DataPlan, MicroBatch, StepPlan

MICRO_BATCHES = 8  # a stage: the pipeline idles for (stages - 1) / (micro-batches + stages - 1) of a step


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, end) of a rank's own share of a micro-batch that rank `peer` of the neighbour stage has as well."""

    peer: int
    start: int
    end: int


def micro_batch_sizes(batch: int, counts: Sequence[int], max_local: int | None) -> tuple[int, ...]:
    """Samples of each micro-batch of a step. `counts`: ranks by stage; `max_local`: samples that a rank takes at once.

    Enough micro-batches to keep all stages busy, but none with fewer samples than the widest stage has ranks, as long
    as the batch has as many.
    """
    num = min(MICRO_BATCHES * len(counts), batch // max(counts)) if len(counts) > 1 else 1
    if max_local is not None:
        num = max(num, -(-batch // (max_local * min(counts))))
    num = max(1, min(num, batch))
    return tuple(rank_share(batch, i, num)[1] for i in range(num))


def pieces(size: int, own: tuple[int, int], peers: int) -> tuple[Piece, ...]:
    """Of a micro-batch of `size` samples what a rank shares with each of the `peers` ranks of a neighbour stage.

    `own`: (index, ranks) of the rank in its own stage.
    """
    offset, length = rank_share(size, *own)
    found = []
    for peer in range(peers):
        peer_offset, peer_length = rank_share(size, peer, peers)
        start, end = max(offset, peer_offset), min(offset + length, peer_offset + peer_length)
        if start < end:
            found.append(Piece(peer, start - offset, end - offset))
    return tuple(found)


def plan_placed_step(
    plan: DataPlan, cursor: int, global_batch: int, counts: Sequence[int], stage: int, index: int
) -> tuple[StepPlan, tuple[int, ...]]:
    """One rank's part of the step that starts at `cursor`, and the sizes of all its micro-batches.

    A rank without a share of a micro-batch, only ever in a job's last batch, has one of no samples and no weight.
    """
    batch = min(global_batch, plan.total_samples - cursor)
    sizes = micro_batch_sizes(batch, counts, plan.max_local)
    micro, begin = [], 0
    for number, size in enumerate(sizes):
        offset, length = rank_share(size, index, counts[stage])
        indices = plan.batch(cursor, batch, begin + offset, length)
        last = number == len(sizes) - 1
        micro.append(MicroBatch(cursor + begin + offset, indices, length / batch, last))
        begin += size
    return StepPlan(cursor, batch, tuple(micro)), sizes
