"""How much each job gets, unit by unit: the marginal half of AITurbo (HPDC 2021, section 4).

A unit is a slot of an ordinary job, or a worker, a parameter server, a CPU share or a GPU of a job that has those
(`policy.parameter_servers.sizes`). Three steps, over jobs in the order in which they are served:

1. Claims. A job that can be predicted claims the size at which it needs the least service to its end: from what its
   user asked for, units are added or taken as long as each lowers service rate x remaining time. One that cannot
   claims what its user asked for.
2. Placement. In order, each gets its claim; where that does not fit, without the units whose loss slows it the
   least; where not even its smallest size fits, it waits, and those behind it may pass.
3. What is left goes unit by unit to the largest gain, jobs completed per unit of service. A unit that would restart a
   running job has to win back the restart in the time that the job still needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from elastic_core.policy.aiturbo.borda import FIRST_QUEUE
from elastic_core.policy.base.remaining_work import known_remaining
from elastic_core.policy.parameter_servers.sizes import Size, Sizes

MIN_GAIN = 0.01  # relative: a unit that changes less is noise
RESTARTS_WON = 2.0  # what a change saves, in restarts, before a running job is restarted for it
_MOST_UNITS = 10_000  # of one climb; sizes are finite, so this is never reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    sizes: Sizes
    predictable: bool
    work: float  # still to do, in the unit of `sizes.speed`; a guess where the job cannot be predicted
    claimed: Size | None  # on the preferred type; None: the pool can never hold it
    remaining_service: float
    held: Size | None

    @staticmethod
    def of(sizes: Sizes, capacity: Mapping[str, int], *, predictable: bool, attained: float) -> Claim:
        """`attained`, in units of service, is the best guess of what an unpredictable job still needs."""
        requested = next(iter(sizes.starts(capacity)), None)
        if requested is None:
            return Claim(
                sizes=sizes, predictable=predictable, work=0.0, claimed=None, remaining_service=attained, held=None
            )
        held = sizes.held()
        claimed = cheapest(sizes, requested)
        work = known_remaining(sizes.job) if predictable else max(attained, FIRST_QUEUE) / _cost(sizes, claimed)
        if held is not None and _not_worth_a_restart(sizes, held, claimed, work):
            claimed = held
        service = work * _cost(sizes, claimed) if predictable else max(attained, FIRST_QUEUE)
        return Claim(
            sizes=sizes, predictable=predictable, work=work, claimed=claimed, remaining_service=service,
            held=held,
        )  # fmt: skip

    def seconds(self, size: Size) -> float:
        """To its end at this size."""
        return self.work / self.sizes.speed(size)

    def gain(self, current: Size, changed: Size) -> float:
        """Jobs completed a second more, for each unit of service a second more."""
        faster = self.sizes.speed(changed) - self.sizes.speed(current)
        return faster / max(self.work, 1e-9) / max(changed.service_rate - current.service_rate, 1e-9)

    def pays(self, current: Size, changed: Size) -> bool:
        """Whether the unit makes enough difference; past what a running job holds, whether it pays for the restart."""
        if self.sizes.speed(changed) < (1.0 + MIN_GAIN) * self.sizes.speed(current):
            return False
        if self.held is None or changed == self.held or current != self.held:
            return True
        saved = self.seconds(current) - self.seconds(changed)
        return saved > RESTARTS_WON * max(self.sizes.job.resize_seconds, 0.0)

    def explain(self, size: Size) -> str:
        processes = " and ".join(f"{count} {name}" for name, count in size.roles) or "slots"
        held = " + ".join(f"{count} {kind}" for kind, count in size.counts)
        description = f"{processes} on {held}" if size.roles else held
        if size == self.claimed:
            least = "with the least service to its end" if self.predictable else "as it asked for"
            return f"{description}, {least}"
        more = self.claimed is not None and self.sizes.speed(size) > self.sizes.speed(self.claimed)
        why = "more than it claims: nobody needs the rest more" if more else "all that is left of its claim"
        return f"{description}, {why}"


def cheapest(sizes: Sizes, start: Size) -> Size:
    """From `start` by single units to the size that needs the least service for the same work."""
    current = start
    for _ in range(_MOST_UNITS):
        neighbours = [size for _, size in (*sizes.larger(current), *sizes.smaller(current))]
        best = min(neighbours, key=lambda size: _cost(sizes, size), default=current)
        if _cost(sizes, best) >= (1.0 - MIN_GAIN / 2) * _cost(sizes, current):
            break
        current = best
    return current


def _not_worth_a_restart(sizes: Sizes, held: Size, cheaper: Size, work: float) -> bool:
    """Whether the service that the other size saves is less than what restarts waste."""
    saved = (_cost(sizes, held) - _cost(sizes, cheaper)) * work
    return saved < RESTARTS_WON * max(sizes.job.resize_seconds, 0.0) * cheaper.service_rate


def _cost(sizes: Sizes, size: Size) -> float:
    return size.service_rate / sizes.speed(size)


def allot(claims: Sequence[Claim], capacity: Mapping[str, int]) -> dict[str, Size]:
    """A size for every job that runs, by job_id; together within the capacity. `claims` in the order of service."""
    room = dict(capacity)
    granted: dict[str, Size] = {}
    for claim in claims:
        size = _place(claim, room)
        if size is not None:
            _take_from(room, size)
            granted[claim.sizes.job.job_id] = size
    placed = [claim for claim in claims if claim.sizes.job.job_id in granted]
    _hand_out_rest(placed, granted, room, moves=len(placed) == len(claims))
    return granted


def _place(claim: Claim, room: Mapping[str, int]) -> Size | None:
    """Its claim on the first type that takes it whole, else the most of it that fits somewhere."""
    if claim.claimed is None:
        return None
    reduced = []
    for start in _start_sizes(claim, room):
        if start.fits(room):
            return start
        size = _shrink_to_fit(claim.sizes, start, room)
        if size is not None:
            reduced.append(size)
    return max(reduced, key=claim.sizes.speed, default=None)


def _start_sizes(claim: Claim, room: Mapping[str, int]) -> Iterator[Size]:
    if claim.claimed is not None and claim.claimed == claim.held:
        yield claim.claimed
    for requested in claim.sizes.starts(room):
        yield cheapest(claim.sizes, requested)


def _shrink_to_fit(sizes: Sizes, size: Size, room: Mapping[str, int]) -> Size | None:
    """Without the units that it misses the least, until it fits; None where nothing of it does."""
    while not size.fits(room):
        over = size.overfull(room)
        smaller_sizes = [
            smaller
            for _, smaller in sizes.smaller(size)
            if any(smaller.count(kind) < size.count(kind) for kind in over)
        ]
        if not smaller_sizes:
            return None
        size = max(smaller_sizes, key=sizes.speed)
    return size


def _hand_out_rest(placed: Sequence[Claim], granted: dict[str, Size], room: dict[str, int], *, moves: bool) -> None:
    """The unit with the largest gain first, until none is left that fits and pays.

    Where everybody runs, `moves` to a faster type are units too; else what a move leaves would be owed to who waits.
    """
    heap: list[tuple[float, int]] = []
    for rank, claim in enumerate(placed):
        _push(heap, rank, _best_unit(claim, granted[claim.sizes.job.job_id], room, moves))
    while heap:
        _, rank = heappop(heap)
        claim = placed[rank]
        job_id = claim.sizes.job.job_id
        best = _best_unit(claim, granted[job_id], room, moves)
        if best is not None:
            _return_to(room, granted[job_id])
            granted[job_id] = best[1]
            _take_from(room, best[1])
            _push(heap, rank, _best_unit(claim, granted[claim.sizes.job.job_id], room, moves))


def _push(heap: list[tuple[float, int]], rank: int, best: tuple[float, Size] | None) -> None:
    if best is not None:
        heappush(heap, (-best[0], rank))


def _best_unit(claim: Claim, current: Size, room: Mapping[str, int], moves: bool) -> tuple[float, Size] | None:
    """(gain, size with it) of the best unit that fits beside what it has, a faster type being one as well."""
    options = []
    for size in (
        *(size for _, size in claim.sizes.larger(current)),
        *(claim.sizes.elsewhere(current) if moves else ()),
    ):
        more = all(count - current.count(kind) <= room.get(kind, 0) for kind, count in size.counts)
        if more and claim.pays(current, size):
            options.append((claim.gain(current, size), size))
    return max(options, key=lambda option: option[0], default=None)


def _take_from(room: dict[str, int], size: Size) -> None:
    for kind, count in size.counts:
        room[kind] = room.get(kind, 0) - count


def _return_to(room: dict[str, int], size: Size) -> None:
    for kind, count in size.counts:
        room[kind] += count
