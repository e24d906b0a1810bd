"""What a change of slots costs a job of `horizon`: its restart, set against the time that the new allocation will last.

A start or a growth pays its restart out of the time until the job ends or is expected to be moved again. Who gives up
slots for a shorter job wants them back when that one is done: it is charged the way back over that (short) time too,
so that a job with a long restart is not moved for a moment's gain. How long allocations last is learnt from the job
itself: what was moved often will be moved soon, what has lasted long will last as long again (Lindy's law).

A resize in place costs less than one by new processes by an order of magnitude, so that options of the type held are
charged the one and options of another type the other. A job that was never resized that way is taken to be as slow at
it as other jobs were, by the size of its state (`predict.speed.resize_line`); where that is not known, by what its own
starts take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

import numpy as np

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.remaining_distribution import RemainingWork
from elastic_core.predict.speed.resize_line import ResizeLine
from elastic_core.predict.speed.throughput import Floats, Ints

STAY = 1200.0  # seconds that an allocation is expected to last before anything is known
STAYS_KNOWN = 3.0  # allocations of the job itself that this counts for
MIN_UNTIL_BACK = 60.0  # seconds: nobody has slots back sooner
MIN_RESTART = 0.1  # seconds: no resize is free, so that of equal plans the one in force stays
MIN_KEPT = 0.05  # of an option's value that a start keeps, however long its restart: idle slots serve nobody


MOST_KNOWN = 20  # jobs whose seconds are remembered


Measured = tuple[float, int | None]
"""Seconds of a job's resizes of one kind, and bytes of its state, where they are known."""


@dataclass(frozen=True)
class ResizeTimes:
    """What resizes of the last jobs took, by job: in place, and by new processes."""

    in_place: dict[str, Measured] = field(default_factory=dict)
    restart: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def recall(cls, state: Mapping[str, Any], jobs: Sequence[JobView]) -> Self:
        """From the policy's state, and what these jobs have measured since."""
        stored = state.get("resizes", {})
        in_place, restart = (_stored(stored.get(kind, {})) for kind in ("in_place", "restart"))
        for job in jobs:
            for known, seconds in ((in_place, job.in_place_seconds), (restart, job.restart_seconds)):
                if seconds is not None:
                    known.pop(job.job_id, None)  # the newest come last
                    known[job.job_id] = seconds, job.state_bytes
        return cls(_newest(in_place), _newest(restart))

    def to_json(self) -> dict[str, Any]:
        return {"in_place": self.in_place, "restart": self.restart}

    def of_restarts(self, jobs: Sequence[JobView]) -> Floats:
        """Seconds that each job takes to start again by new processes."""
        line = _line(self.restart)
        return np.asarray([_seconds(job, job.restart_seconds, line) for job in jobs])

    def of_options(self, jobs: Sequence[JobView], options: Options) -> Floats:
        """Seconds that each job (rows) takes to go over to each option (columns), whichever it holds."""
        line, share = _line(self.in_place), self._in_place_of_restarts()
        seconds = np.repeat(self.of_restarts(jobs)[:, None], len(options.counts), axis=1)
        for row, job in enumerate(jobs):
            held = set() if job.allocation is None else set(job.allocation.counts())
            same = [kind in held for kind in options.kinds]
            if len(held) == 1 and any(same) and job.limits.placed is None:  # no stage is resized in place
                stays = np.asarray(same)[options.kind_index] & (np.arange(len(options.counts)) < options.num_single)
                by_starts = None if share is None or job.state_bytes is not None else share * seconds[row, 0]
                own = by_starts if job.in_place_seconds is None else job.in_place_seconds
                seconds[row, stays] = min(_seconds(job, own, line), seconds[row, 0])
        return seconds

    def _in_place_of_restarts(self) -> float | None:
        """What a resize in place takes, of what a restart of the same job does; None where no job has had both."""
        shares = [
            self.in_place[job_id][0] / max(seconds, MIN_RESTART)
            for job_id, (seconds, _) in self.restart.items()
            if job_id in self.in_place
        ]
        return median(shares) if shares else None


def _stored(known: Mapping[str, Any]) -> dict[str, Measured]:
    """States that were kept before sizes were known hold seconds alone."""
    pairs = {job_id: value if isinstance(value, Sequence) else (value, None) for job_id, value in known.items()}
    return {job_id: (seconds, size) for job_id, (seconds, size) in pairs.items()}


def _newest(known: dict[str, Measured]) -> dict[str, Measured]:
    return dict(list(known.items())[-MOST_KNOWN:])


def _line(known: Mapping[str, Measured]) -> ResizeLine | None:
    return ResizeLine.fit(list(known.values())) if known else None


def _seconds(job: JobView, own: float | None, line: ResizeLine | None) -> float:
    """Its own, where it was measured; else those of others by their sizes; else of its own moves or starts."""
    if own is None:
        own = job.resize_seconds if line is None else line.seconds(job.state_bytes)
    return max(own, MIN_RESTART)


def expected_stays(snapshot: Snapshot) -> Floats:
    """Seconds that an allocation of each job can be expected to last."""
    expected = []
    for job in snapshot.jobs:
        past = (STAYS_KNOWN * STAY + snapshot.now - job.submitted_at) / (STAYS_KNOWN + job.num_resizes)
        lasted = snapshot.now - job.allocated_since if job.allocation and job.allocated_since is not None else 0.0
        expected.append(max(past, lasted))
    return np.asarray(expected)


def seconds_to_pay_over(left: RemainingWork, remaining_seconds: Floats, resize_seconds: Floats, stay: Floats) -> Floats:
    """Seconds that a new allocation is expected to last, the resize in it, by job and option: until the job ends or
    is moved. A job that may end at any moment is expected to hold it for less than until it ends on average."""
    lasting = np.minimum(remaining_seconds + resize_seconds, stay[:, None])
    for row in np.flatnonzero(left.quantiles[:, 0] < left.quantiles[:, -1]):
        per_second = left.mean[row] / remaining_seconds[row]
        usable = np.isfinite(remaining_seconds[row]) & (per_second > 0)
        until_moved = np.maximum(stay[row] - resize_seconds[row, usable], 0.0)
        trained = left.within(int(row), until_moved * per_second[usable]) / per_second[usable]
        lasting[row, usable] = np.minimum(trained + resize_seconds[row, usable], stay[row])
    return lasting


def seconds_until_back(remaining_seconds: Floats, shares: Floats) -> Floats:
    """Seconds after which each job can expect to have back what shorter ones take of it: when they are done.

    One after the other with all of the pool (`shares`: of it, by option), or all at once, whichever takes longer.
    """
    shortest, share_used = remaining_seconds.min(axis=1), shares[remaining_seconds.argmin(axis=1)]
    order = np.argsort(shortest, kind="stable")
    finite = np.where(np.isfinite(shortest), shortest, 0.0)[order]
    num_shorter = np.arange(len(order))
    in_turn = np.cumsum(finite * share_used[order]) - finite * share_used[order]
    at_once = (np.cumsum(finite) - finite) / np.maximum(num_shorter, 1)
    until_back = np.empty(len(order))
    until_back[order] = np.where(num_shorter > 0, np.clip(np.maximum(in_turn, at_once), MIN_UNTIL_BACK, STAY), STAY)
    return until_back


def values_less_restarts(
    price: Floats, goodput: Floats, remaining_seconds: Floats, held: Ints,
    restart_seconds: Floats, resize_seconds: Floats, stay: Floats, until_back: Floats, lasting: Floats,
) -> Floats:  # fmt: skip
    """Value of each option to each job: the rate at which completion times fall, less resizes. Above what it is worth
    to have nothing, which for a job that runs is another start (`restart_seconds`) when it has slots back.

    `resize_seconds`: of `ResizeTimes.of_options`; `lasting`: of `seconds_to_pay_over`."""
    rows, runs = np.arange(len(goodput)), held != NOTHING
    now_at = np.where(runs, goodput[rows, held], 0.0)
    grows = goodput > now_at[:, None]
    cost = resize_seconds / np.maximum(lasting, 1e-9)
    values = price[:, None] * goodput * np.maximum(1.0 - cost, np.where(runs, 0.0, MIN_KEPT)[:, None])
    until_back = np.minimum(until_back, stay)
    value_of_restart = (price * now_at * restart_seconds / until_back)[:, None]
    needed_back = np.minimum(remaining_seconds / until_back[:, None], 1.0)  # who is done by then needs nothing back
    value_of_way_back = (price * now_at / until_back)[:, None] * resize_seconds
    values = values - np.where(grows, 0.0, value_of_way_back * needed_back)
    values[rows[runs], held[runs]] = (price * now_at)[runs]
    return np.where(goodput > 0, values + value_of_restart, 0.0)
