"""The jobs of a sweep beside each other: what each was given, and what came of it, the best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_core.commands.printing import print_table
from elastic_core.domain import JobState, to_json
from elastic_core.errors import NotFound
from elastic_core.protocol.encoding import finite
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.process_groups import held_out
from elastic_core.protocol.records import JobStatus
from elastic_core.spec.inputs.dotted import text_of
from elastic_core.spec.inputs.sweeps import swept_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A job and its metric: that of its evaluation on held-out data, else of its last checkpoint (`so_far`)."""

    job: JobStatus
    value: float | None
    so_far: bool

    def rank(self) -> tuple[Any, ...]:
        """Held-out metrics first, the best first; then those of checkpoints, which are not measured on the same. What
        is no finite number is no better than nothing."""
        if self.value is None or not math.isfinite(self.value):
            return (2, 0.0, self.job.job_id)
        better = -self.value if self.job.facts.metric_mode == "max" else self.value
        return (1 if self.so_far else 0, better, self.job.job_id)


def jobs_of(api: HttpControl, group: str, active_only: bool) -> list[Measured]:
    """The best first. Raises `NotFound` for a group without jobs."""
    jobs = api.jobs(active_only, group)
    if not jobs and not api.jobs(group=group):
        raise NotFound(
            f"no job is known of group {group!r}. Members are listed once their task's code has accepted them; "
            "`elastic jobs submit --sweep` says the group's id"
        )
    return sorted((_measured(api, job) for job in jobs), key=Measured.rank)


def as_plain(found: Sequence[Measured]) -> list[dict[str, Any]]:
    return [
        {"job": to_json(one.job), "values": swept_values(one.job.spec), "metric": one.job.facts.metric,
         "value": finite(one.value), "so_far": one.so_far}
        for one in found
    ]  # fmt: skip


def print_group(found: Sequence[Measured]) -> None:
    values = [swept_values(one.job.spec) for one in found]
    fields = list(dict.fromkeys(field for own in values for field in own))
    names = sorted({one.job.facts.metric for one in found})
    rows = (
        (
            one.job.job_id,
            _state(one.job),
            *(text_of(own[field]) if field in own else "" for field in fields),
            _value(one),
        )
        for one, own in zip(found, values, strict=True)
    )
    print_table(("job", "state", *fields, " or ".join(names)), rows)


def _measured(api: HttpControl, job: JobStatus) -> Measured:
    metric, measured = job.facts.metric, held_out(job.results)
    if metric in measured:
        return Measured(job=job, value=measured[metric], so_far=False)
    good = [record for record in api.checkpoints(job.job_id) if record.lineage == job.lineage and not record.bad]
    return Measured(job=job, value=good[-1].metrics.get(metric) if good else None, so_far=True)


def _state(job: JobStatus) -> str:
    if job.state is not JobState.ACTIVE:
        return job.state
    return "paused" if job.paused else f"{min(1.0, job.done_samples / job.total_samples):.0%}"


def _value(one: Measured) -> str:
    if one.value is None:
        return "-"
    return f"{one.value:.6g}" + (f" in training, step {one.job.step}" if one.so_far else "")
