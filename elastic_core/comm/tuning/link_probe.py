"""How fast the ranks of a group reach each other: seconds a message and seconds a byte (Hockney's alpha and beta).

Messages of a few sizes go around a ring, and between pairs, both ways at once as exchanges send them; the times of the
slowest rank are fitted by least squares of relative errors with terms that are not negative, and a byte takes at least
what it took in the largest: a shaped link lets a burst of small ones through at once. Sizes grow while the next
is expected to end in time, so that a slow link is probed with less and the whole takes a third of a second at most on a
link that carries 64 KiB in that time. It knows no more than it met: a link that is shared was as busy as it was then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.piecewise import swap
from elastic_core.domain import Link

BUDGET_SECONDS = 0.3
_SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)  # bytes
_ROUNDS = 2  # of a size, whose best counts: what else went on only slows


def probe(
    group: dist.ProcessGroup | None = None, among: Sequence[int] | None = None, budget: float = BUDGET_SECONDS
) -> Link:
    """Collective; the same on every rank. Of a ring and of pairs the slower, which is the ring where there are two.
    `among`: ranks of the group, which alone send; all, if it is None. `budget`: seconds that all messages may take."""
    rank, ranks = dist.get_rank(group), range(dist.get_world_size(group)) if among is None else among
    world = len(ranks)
    place = ranks.index(rank) if rank in ranks else None
    around = {} if place is None else {ranks[(place + 1) % world]: ranks[(place - 1) % world]}
    ring = _timed(around, group, budget if world == 2 else budget / 2)
    if world == 2:
        return sustained(ring)
    partner = rank if place is None else ranks[world - 1 - place]
    pairs = _timed({partner: partner} if partner != rank else {}, group, budget / 2)
    links = sustained(ring), sustained(pairs)
    return Link(max(link.latency for link in links), max(link.seconds_per_byte for link in links))


def sustained(times: Sequence[tuple[int, float]]) -> Link:
    """The fit of (bytes, seconds) in order of size, no faster than the largest message was."""
    link, (size, seconds) = fit(times), times[-1]
    return Link(link.latency, max(link.seconds_per_byte, (seconds - link.latency) / size))


def fit(times: Sequence[tuple[int, float]]) -> Link:
    """Of (bytes, seconds), all positive: minimises the sum of ((latency + bytes x - seconds) / seconds)^2."""
    ones = [1 / seconds for _, seconds in times]
    sizes = [size / seconds for size, seconds in times]
    oo, os, ss = _dot(ones, ones), _dot(ones, sizes), _dot(sizes, sizes)
    o, s = sum(ones), sum(sizes)
    determinant = oo * ss - os * os
    latency = (o * ss - s * os) / determinant if determinant > 0 else -1.0
    per_byte = (s * oo - o * os) / determinant if determinant > 0 else -1.0
    if latency >= 0 and per_byte >= 0:
        return Link(latency, per_byte)
    alone = Link(o / oo, 0.0), Link(0.0, s / ss)  # the best with one term: the least squares' are on an edge
    return max(alone, key=lambda link: link.latency * o + link.seconds_per_byte * s)


def _timed(peers: Mapping[int, int], group: dist.ProcessGroup | None, budget: float) -> list[tuple[int, float]]:
    """(bytes, seconds of the slowest rank), the same on every rank. `peers`: whom this rank sends to, and hears."""
    times: list[tuple[int, float]] = []
    spent = 0.0
    for size in _SIZES:
        expected = times[-1][1] * size / times[-1][0] if len(times) > 2 else 0.0
        if spent + _ROUNDS * expected > budget:
            break
        seconds = [_slowest(_swap_seconds(size, peers, group), group) for _ in range(_ROUNDS)]
        spent += sum(seconds)
        times.append((size, max(min(seconds), 1e-9)))
    return times


def _swap_seconds(size: int, peers: Mapping[int, int], group: dist.ProcessGroup | None) -> float:
    sends = {to: torch.empty(size, dtype=torch.uint8) for to in peers}
    receives = {source: torch.empty(size, dtype=torch.uint8) for source in peers.values()}
    dist.barrier(group)
    started = time.perf_counter()
    swap(sends, receives, group)
    return time.perf_counter() - started


def _slowest(seconds: float, group: dist.ProcessGroup | None) -> float:
    told: Tensor = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX, group)
    return float(told)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
