"""From the ledger's rows, after a run: how long recoveries took, and what share of the time was effective training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine, text

from benchmarks.chaos.fault_kinds import Fault

# When the first step that is known of a process group had been taken. A checkpoint knows it best; a group that was
# ended before its first commit has reports only, of two seconds each.
FIRST_STEPS = text("""
    SELECT l.job_id, l.origin_epoch, min(known.at) AS at
    FROM leases l JOIN (
        SELECT epoch, at FROM observations
        UNION ALL
        SELECT epoch, (timings ->> 'first_step_at')::float8 + (timings ->> 'first_step')::float8 FROM checkpoints
        WHERE timings ? 'first_step_at' AND timings ? 'first_step'
    ) known ON known.epoch = l.epoch
    GROUP BY l.job_id, l.origin_epoch
""")
CHECKPOINTS = text("""
    SELECT c.job_id, c.epoch, c.samples, coalesce(p.samples, 0) AS since
    FROM checkpoints c LEFT JOIN checkpoints p ON p.id = c.previous_id
    WHERE NOT c.bad ORDER BY c.job_id, c.samples
""")
SPEEDS = text("SELECT job_id, epoch, samples, samples_per_second AS speed FROM observations ORDER BY epoch, step")
GRANTS = text("SELECT job_id, origin_epoch, min(granted_at) AS at FROM leases GROUP BY job_id, origin_epoch")
HELD = text("""
    SELECT j.id, min(l.granted_at) AS began, j.finished_at AS ended
    FROM jobs j JOIN leases l ON l.job_id = j.id WHERE j.state = 'finished' GROUP BY j.id
""")


@dataclass(frozen=True, slots=True)
class Effective:
    """Of one finished job, in seconds."""

    job: str
    wall: float  # from its first slots to its end
    training: float  # in steps of what was committed and is part of its history

    @property
    def share(self) -> float:
        return self.training / self.wall


def recoveries(engine: Engine, killed: Iterable[Fault]) -> tuple[dict[int, float], list[Fault]]:
    """Seconds from each kill to the job's next step, by the worker's pid; and kills after which no other group of the
    job took a step: its work was done already, or the worker was leaving."""
    with engine.connect() as connection:
        rows = [(row.job_id, row.origin_epoch, row.at) for row in connection.execute(FIRST_STEPS)]
    seconds, without = {}, []
    for fault in killed:
        after = [at for job, origin, at in rows if job == fault.job and origin > fault.origin and at > fault.at]
        if after and fault.process is not None:
            seconds[fault.process.pid] = min(after) - fault.at
        else:
            without.append(fault)
    return seconds, without


def waits_for_slots(engine: Engine, killed: Iterable[Fault]) -> dict[int, float]:
    """Seconds from each kill until the job had slots again, by the worker's pid: the part of a recovery that is for the
    agent's report and the policy's decision."""
    with engine.connect() as connection:
        rows = [(row.job_id, row.origin_epoch, row.at) for row in connection.execute(GRANTS)]
    return {
        fault.process.pid: min(after) - fault.at
        for fault in killed
        if fault.process is not None
        and (after := [at for job, origin, at in rows if job == fault.job and origin > fault.origin and at > fault.at])
    }


def effective_times(engine: Engine) -> list[Effective]:
    """Of every finished job."""
    with engine.connect() as connection:
        kept = [dict(row) for row in connection.execute(CHECKPOINTS).mappings()]
        speeds = [dict(row) for row in connection.execute(SPEEDS).mappings()]
        jobs = list(connection.execute(HELD))
    return [
        Effective(
            job=job.id,
            wall=job.ended - job.began,
            training=training_seconds(
                [row for row in kept if row["job_id"] == job.id], [row for row in speeds if row["job_id"] == job.id]
            ),
        )
        for job in jobs
    ]


def training_seconds(kept: Sequence[Mapping[str, Any]], speeds: Sequence[Mapping[str, Any]]) -> float:
    """Seconds that the steps of a job's committed history took. What was trained and lost is in no checkpoint.

    `kept`: its checkpoints, each with the samples at it and `since` which; `speeds`: its reports, by epoch and step.
    Steps between two reports went at the speed of the later; an epoch without a report, at the job's mean.
    """
    if not speeds:
        return 0.0
    mean = sum(row["speed"] for row in speeds) / len(speeds)
    by_epoch: dict[int, list[tuple[float, float]]] = {}
    for row in speeds:
        by_epoch.setdefault(row["epoch"], []).append((row["samples"], row["speed"]))
    return sum(_seconds(row["since"], row["samples"], by_epoch.get(row["epoch"], []), mean) for row in kept)


def _seconds(since: int, until: int, reports: Sequence[tuple[float, float]], mean: float) -> float:
    ends = [(float("-inf"), mean), *reports, (float("inf"), reports[-1][1] if reports else mean)]
    return sum(max(0.0, min(until, end) - max(since, begin)) / speed for (begin, _), (end, speed) in pairwise(ends))
