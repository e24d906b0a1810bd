"""How fast the types are to each other, by all tasks: where one was never tried, it is projected from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_core.domain import Limits
from elastic_core.policy.task_memory.measurements import TaskMemory
from elastic_core.predict.speed.experience import NOTHING, Experience, learn
from elastic_core.predict.speed.fit import step_times

MAX_TASKS_LEARNT_FROM = 32  # the latest
REFIT_GROWTH = 1.5
_ANY = Limits(slot_counts=(1,), types=(), min_batch=1, max_batch=1)


@dataclass(frozen=True)
class CrossTaskPrior:
    experience: Experience = NOTHING
    evidence: int = 0  # configurations that it was learnt from

    def refreshed(self, memories: Mapping[str, TaskMemory]) -> CrossTaskPrior:
        """Learnt anew once there is half as much again to learn from, since it makes every task's model another one."""
        evidence = sum(len(memory.means) for memory in memories.values())
        if evidence < REFIT_GROWTH * self.evidence or not evidence:
            return self
        measured = [memory for memory in memories.values() if memory.means][-MAX_TASKS_LEARNT_FROM:]
        models = step_times.all([(memory.points(), _ANY, NOTHING) for memory in measured])
        return CrossTaskPrior(learn(models), evidence)

    def to_json(self) -> list[Any]:
        return [self.evidence, [list(row) for row in self.experience.by_type]]

    @staticmethod
    def of(raw: Sequence[Any] | None) -> CrossTaskPrior:
        if raw is None:
            return CrossTaskPrior()
        rows = tuple((kind, tuple(means), tuple(spreads)) for kind, means, spreads in raw[1])
        return CrossTaskPrior(Experience(rows), raw[0])
