"""The leases of a simulated job, summed up one by one to the `Past` that `snapshot.past` defines."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_core.domain import Allocation
from elastic_core.snapshot.past import Past, is_move


@dataclass(slots=True)
class _Pauses:
    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1

    @classmethod
    def one(cls, seconds: float | None) -> _Pauses:
        return cls() if seconds is None else cls(seconds, 1)

    def mean(self) -> float | None:
        return self.seconds / self.count if self.count else None


class HeldLeases:
    """Processes end at once here, so that a pause is the time from a grant to the first step after it."""

    def __init__(self) -> None:
        self._any = False
        self._last: Allocation | None = None  # None: there was none, or nobody knows on which slots
        self._live: tuple[float, int] | None = None  # granted at, slots that count
        self._closed_slot_seconds = 0.0
        self._num_resizes = 0
        self._last_resize_at: float | None = None
        self._allocated_since: float | None = None
        self._pausing: tuple[float, tuple[_Pauses, ...]] | None = None  # since; the kinds that it is one of
        self._of_moves, self._of_restarts, self._of_the_first = _Pauses(), _Pauses(), _Pauses()
        self._in_place = _Pauses()

    @classmethod
    def after(cls, past: Past, *, any_before: bool) -> HeldLeases:
        """Of a job that is not new: what its leases came to goes on. Each mean of pauses counts as one pause."""
        leases = cls()
        leases._any, leases._closed_slot_seconds = any_before, past.slot_seconds
        leases._num_resizes, leases._last_resize_at = past.num_resizes, past.last_resize_at
        leases._allocated_since = past.allocated_since
        leases._of_moves, leases._of_restarts = _Pauses.one(past.resize_seconds), _Pauses.one(past.restart_seconds)
        leases._in_place = _Pauses.one(past.in_place_seconds)
        return leases

    @property
    def allocated_since(self) -> float | None:
        return self._allocated_since

    @property
    def first_step_is_to_come(self) -> bool:
        """Of a start or a move."""
        return self._pausing is not None

    def granted(self, now: float, allocation: Allocation, slots: int, *, restarted: bool) -> None:
        """A lease begins that costs a pause. `slots`: those that count as used by the job."""
        moved = self._any and (self._last is None or is_move(self._last, allocation))
        kinds = [self._of_moves] if moved else []
        if restarted:
            kinds.append(self._of_restarts if self._any else self._of_the_first)
        elif moved:
            kinds.append(self._in_place)
        if self._any:
            self._num_resizes += 1
            self._last_resize_at = now
        self._allocated_since, self._pausing = now, (now, tuple(kinds))
        self._any, self._last, self._live = True, allocation, (now, slots)

    def held_before(self, now: float, allocation: Allocation, slots: int) -> None:
        """The lease that it held as it was looked at, which costs no pause."""
        self._any, self._pausing = True, (now, ())
        self._last, self._live = allocation, (now, slots)

    def goes_on(self, now: float, allocation: Allocation) -> None:
        """The same slots under a new lease."""
        assert self._live is not None, "a job that holds nothing cannot go on"
        slots = self._live[1]
        self.released(now)
        self._last, self._live = allocation, (now, slots)

    def first_step(self, at: float) -> None:
        """Of the processes of the lease."""
        assert self._pausing is not None, "it has made its first step"
        since, kinds = self._pausing
        for pauses in kinds:
            pauses.add(at - since)
        self._pausing = None

    def released(self, now: float) -> None:
        assert self._live is not None, "it holds nothing"
        since, slots = self._live
        self._closed_slot_seconds += slots * (now - since)
        self._live = None

    def past(self, now: float) -> Past:
        held = 0.0 if self._live is None else self._live[1] * (now - self._live[0])
        of_starts = (self._of_restarts if self._of_restarts.count else self._of_the_first).mean()
        return Past(
            self._closed_slot_seconds + held,
            self._num_resizes,
            self._last_resize_at,
            self._allocated_since,
            self._of_moves.mean() if self._of_moves.count else of_starts,
            self._in_place.mean(),
            of_starts,
        )
