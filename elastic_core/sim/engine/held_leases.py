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

    def mean(self) -> float | None:
        return self.seconds / self.count if self.count else None


class HeldLeases:
    """Processes end at once here, so that a pause is the time from a grant to the first step after it."""

    def __init__(self) -> None:
        self._last: Allocation | None = None
        self._live: tuple[float, int] | None = None  # granted at, slots that count
        self._closed_slot_seconds = 0.0
        self._num_resizes = 0
        self._last_resize_at: float | None = None
        self._allocated_since: float | None = None
        self._pausing: tuple[float, tuple[_Pauses, ...]] | None = None  # since; the kinds that it is one of
        self._of_moves, self._of_restarts, self._of_the_first = _Pauses(), _Pauses(), _Pauses()
        self._in_place = _Pauses()

    @property
    def started(self) -> bool:
        """There was a lease."""
        return self._last is not None

    @property
    def allocated_since(self) -> float | None:
        return self._allocated_since

    @property
    def first_step_is_to_come(self) -> bool:
        """Of a start or a move."""
        return self._pausing is not None

    def granted(self, now: float, allocation: Allocation, slots: int, *, restarted: bool) -> None:
        """A lease begins that costs a pause. `slots`: those that count as used by the job."""
        moved = self._last is not None and is_move(self._last, allocation)
        kinds = [self._of_moves] if moved else []
        if restarted:
            kinds.append(self._of_the_first if self._last is None else self._of_restarts)
        elif moved:
            kinds.append(self._in_place)
        if self._last is not None:
            self._num_resizes += 1
            self._last_resize_at = now
        self._allocated_since, self._pausing = now, (now, tuple(kinds))
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
        means = (pauses.mean() for pauses in (self._of_moves, self._of_restarts, self._of_the_first))
        return Past(
            self._closed_slot_seconds + held,
            self._num_resizes,
            self._last_resize_at,
            self._allocated_since,
            next((mean for mean in means if mean is not None), None),
            self._in_place.mean(),
            self._of_restarts.mean(),
        )
