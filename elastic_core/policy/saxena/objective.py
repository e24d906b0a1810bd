"""What `elastic_batch` maximises: the sum over jobs of their value, with the cost of every resize in it.

    value_j(g) = s_j(g) * (1 - cost_j(g) where g is not what it holds) - SLOT_PRICE * g

- s_j(g) is the scaling factor (`policy.saxena.scalability`): training speed in units of the job's speed on one slot.
- SLOT_PRICE: a slot must add a tenth of what the first one did, or it stays free.
- cost_j(g): the share of the time ahead that the resize wastes. The time ahead is what the job still needs at g,
  at most HORIZON, since no allocation is expected to last for ever; the cost is never below HYSTERESIS, so that
  measurement noise moves nobody.

Since the cost is part of the objective, the plan as a whole pays for its moves, and a second decision from the same
measurements changes nothing: the plan in force has lost its cost, every other one has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from elastic_core.domain import JobView, ProfilePoint
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import held_count, held_type
from elastic_core.policy.saxena.scalability import Choice, Profiler, analyse, predicted
from elastic_core.policy.saxena.trials import Trials, key, paused

SLOT_PRICE = 0.10
HORIZON = 600.0  # seconds
HYSTERESIS = 0.05


@dataclass(frozen=True)
class Prospect:
    """One job with everything that the decision weighs about it."""

    job: JobView
    choices: Mapping[str, Mapping[int, Choice]]  # by type and count
    trials: Trials
    now: float

    @staticmethod
    def of(
        job: JobView, kinds: Sequence[str], pool: Pool, trials: Trials, now: float, profiler: Profiler = predicted
    ) -> Prospect:
        return Prospect(job, analyse(job, kinds, pool, profiler), trials, now)

    @cached_property
    def held(self) -> tuple[str | None, int]:
        return held_type(self.job), held_count(self.job)

    @cached_property
    def measured(self) -> Mapping[str, frozenset[int]]:
        return {kind: _measured_counts(self.job.profile, kind) for kind in self.choices}

    def value(self, kind: str, count: int) -> float:
        choice = self.choices[kind][count]
        return choice.speedup * (1.0 - self.move_cost(kind, count)) - SLOT_PRICE * count

    def move_cost(self, kind: str, count: int) -> float:
        """Share of the time ahead that is lost by going there; nothing for a job that holds no slots, or these."""
        if self.held[1] == 0 or self.held == (kind, count):
            return 0.0
        remaining_seconds = self.job.remaining_samples / self.choices[kind][count].work_per_second
        pause = max(self.job.resize_seconds, 0.0)
        time_ahead = min(remaining_seconds, HORIZON)
        return max(HYSTERESIS, pause / (pause + time_ahead)) if pause + time_ahead > 0 else 1.0

    def known_up_to(self, kind: str) -> int:
        """The largest count that may be decided on: measured, held now, or the smallest allowed.

        Below it every allowed count is open: between measurements the model interpolates.
        """
        held = self.held[1] if self.held[0] == kind else 0
        return max(self.job.limits.min_slots, held, max(self.measured[kind], default=0))

    def open_values(self, kind: str) -> dict[int, float]:
        limit = self.known_up_to(kind)
        return {count: self.value(kind, count) for count in self.choices[kind] if count <= limit}

    def worth_trying(self, kind: str, now_at: int, room: int) -> int | None:
        """The count to explore from `now_at` with `room` slots idle, or None.

        At most double the largest measured count (of the smallest allowed one, for a job never measured), only a
        count that the model values higher, and none that lately ended without a measurement (`policy.saxena.trials`).
        """
        furthest = 2 * max(self.job.limits.min_slots, max(self.measured[kind], default=0))
        decided_up_to, reach = self.known_up_to(kind), min(furthest, now_at + room)
        if decided_up_to >= reach:
            return None
        best, best_count = self.value(kind, now_at), None
        for count in sorted(self.choices[kind]):
            if decided_up_to < count <= reach and not self.paused(kind, count) and self.value(kind, count) > best:
                best, best_count = self.value(kind, count), count
        return best_count

    def paused(self, kind: str, count: int) -> bool:
        return paused(self.trials.get(key(kind, count)), self.now)


def _measured_counts(profile: Sequence[ProfilePoint], kind: str) -> frozenset[int]:
    return frozenset(point.num_slots for point in profile if point.type == kind and point.step_seconds > 0)
