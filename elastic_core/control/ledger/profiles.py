"""What a decision may know from measurements: step times per configuration, gradient noise, times and resizes so far.

Defined in `snapshot.job_reports` and `snapshot.past`, and held to it by a test. Here all of it is summed up in SQL,
over the latest observations only, so that a long job costs no more than a short one. `best_known` is for whoever asks
whether a job that has no speed of its own now, since it waits, can still be done in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from elastic_core.control.ledger.database import Tx
from elastic_core.domain import Layout, Limits, PlacedSpeed, ProfilePoint, from_json
from elastic_core.snapshot.job_reports import NOISE_WINDOW, QUARTILE, RECENT, as_placed_speeds, as_profile
from elastic_core.snapshot.past import Past

PROFILE = text("""
    SELECT o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation,
           o.layout, o.comm,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.step_seconds) AS step_seconds,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.sync_seconds) AS sync_seconds,
           count(*) AS count
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id AND coalesce(j.spec ->> 'placement', 'none') = 'none'
    CROSS JOIN LATERAL (
        SELECT * FROM observations WHERE job_id = wanted.id AND step_seconds > 0 AND step_seconds < 'Infinity'
        ORDER BY id DESC LIMIT :recent
    ) AS o
    GROUP BY o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation, o.layout,
             o.comm
""")

# Of a placed job, whose reports are told apart by the stages of the lease that they were made under.
PLACED = text("""
    SELECT o.job_id, l.allocation -> 'stages' AS stages, max(o.global_batch) AS global_batch,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.step_seconds) AS step_seconds, count(*) AS count
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id AND coalesce(j.spec ->> 'placement', 'none') <> 'none'
    CROSS JOIN LATERAL (
        SELECT * FROM observations WHERE job_id = wanted.id AND step_seconds > 0 AND step_seconds < 'Infinity'
        ORDER BY id DESC LIMIT :recent
    ) AS o
    JOIN leases l ON l.epoch = o.epoch
    WHERE l.allocation ? 'stages'
    GROUP BY o.job_id, l.allocation -> 'stages'
""")

# NaN is dropped: in PostgreSQL it is greater than any number.
NOISE = text("""
    SELECT wanted.id, avg(o.grad_var) AS var, avg(o.grad_sqr) AS sqr
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT grad_var, grad_sqr FROM observations
        WHERE job_id = wanted.id AND grad_var < 'Infinity' AND grad_sqr < 'Infinity' AND grad_sqr > '-Infinity'
        ORDER BY id DESC LIMIT :window
    ) AS o
    GROUP BY wanted.id
""")

# Leases with what begins each, and the seconds without a step that it began with (`pause`), of all leases of `:jobs`.
PRICED = """
    WITH history AS (
        SELECT l.job_id, l.segment_id, l.epoch, l.num_slots, l.granted_at, l.started_at, l.released_at, s.lineage,
               CASE WHEN s.asked_at <= l.granted_at THEN s.asked_at END AS asked_at,
               l.epoch = l.origin_epoch AS restarted,
               lag(l.allocation - 'global_batch') OVER w <> l.allocation - 'global_batch' AS moved,
               lag(l.epoch) OVER w AS epoch_before,
               lag(l.released_at) OVER w AS gone_at,
               lag(s.ended_at) OVER w AS ended_at,
               lag(s.end_checkpoint_id) OVER w AS ended_with
        FROM leases l JOIN segments s ON s.id = l.segment_id
        WHERE l.job_id = ANY (CAST(:jobs AS text[]))
        WINDOW w AS (PARTITION BY l.job_id ORDER BY l.epoch)
    ), priced AS (
        SELECT h.*, next.step_at AS first_step_at, CASE
            WHEN restarted THEN coalesce(next.step_at, started_at) - granted_at
                 + greatest(gone_at + greatest(asked_at - gone_at, 0) - coalesce(last.step_at, ended_at), 0)
            ELSE next.step_at - last.step_at END AS pause
        FROM (SELECT *, first_value(ended_with) OVER (PARTITION BY job_id, segment_id ORDER BY epoch) AS began_with
              FROM history) h  -- a segment that is tried again starts later: its first attempt's checkpoints are before
        LEFT JOIN LATERAL (
            SELECT (timings ->> 'last_step_at')::float8 AS step_at FROM checkpoints
            WHERE (h.restarted OR h.moved) AND id = h.ended_with AND epoch = h.epoch_before
        ) last ON true
        LEFT JOIN LATERAL (
            SELECT (timings ->> 'first_step_at')::float8 AS step_at FROM checkpoints c
            WHERE (h.restarted OR h.moved) AND c.job_id = h.job_id AND c.lineage = h.lineage AND c.epoch = h.epoch
              AND c.step >= coalesce(
                  (SELECT step FROM checkpoints b WHERE b.id = h.began_with AND b.lineage = h.lineage), 0)
            ORDER BY c.step LIMIT 1
        ) next ON true
    )
"""
PAST = text(f"""
    {PRICED}
    SELECT job_id,
           sum(num_slots * (coalesce(released_at, :now) - granted_at)) AS slot_seconds,
           count(*) FILTER (WHERE (restarted OR moved) AND epoch_before IS NOT NULL) AS num_resizes,
           max(granted_at) FILTER (WHERE (restarted OR moved) AND epoch_before IS NOT NULL) AS last_resize_at,
           max(granted_at) FILTER (WHERE restarted OR moved) AS allocated_since,
           coalesce(
               avg(greatest(pause, 0)) FILTER (WHERE moved AND pause IS NOT NULL),
               avg(greatest(pause, 0)) FILTER (WHERE restarted AND epoch_before IS NOT NULL AND pause IS NOT NULL),
               avg(greatest(pause, 0)) FILTER (WHERE restarted AND pause IS NOT NULL)
           ) AS resize_seconds,
           avg(greatest(pause, 0)) FILTER (WHERE moved AND NOT restarted AND pause IS NOT NULL) AS in_place_seconds,
           coalesce(
               avg(greatest(pause, 0)) FILTER (WHERE restarted AND epoch_before IS NOT NULL AND pause IS NOT NULL),
               avg(greatest(pause, 0)) FILTER (WHERE restarted AND pause IS NOT NULL)
           ) AS restart_seconds
    FROM priced GROUP BY job_id
""")

# Median samples per second of each lease, and what its slots cost an hour, over the latest reports of each job.
SPEEDS = text("""
    SELECT told.job_id, told.num_slots, told.type, told.speed, coalesce((
        SELECT sum(n.price_per_slot_hour)
        FROM lease_slots h JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
        WHERE h.epoch = told.epoch), 0) AS rate
    FROM (
        SELECT o.job_id, o.epoch, o.num_slots, o.type,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY o.samples_per_second) AS speed
        FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT * FROM observations
            WHERE job_id = wanted.id AND samples_per_second > 0 AND samples_per_second < 'Infinity'
            ORDER BY id DESC LIMIT :recent
        ) AS o
        GROUP BY o.job_id, o.epoch, o.num_slots, o.type
    ) AS told
""")

# Among the newest leases: looking through all jobs would take longer with every one that there ever was.
OF_TASKS = text("""
    SELECT task, id FROM (
        SELECT j.id, j.spec ->> 'entry_point' AS task,
               row_number() OVER (PARTITION BY j.spec ->> 'entry_point' ORDER BY l.epoch DESC) AS place
        FROM (
            SELECT job_id, max(epoch) AS epoch
            FROM (SELECT job_id, epoch FROM leases ORDER BY epoch DESC LIMIT :leases) AS newest GROUP BY job_id
        ) AS l
        JOIN jobs j ON j.id = l.job_id WHERE j.spec ->> 'entry_point' = ANY (CAST(:tasks AS text[]))
    ) AS of_task
    WHERE place <= :most
""")
NEWEST_LEASES, JOBS_OF_TASK = 2000, 8  # that a task's speeds are looked for among, and that tell them


@dataclass(frozen=True, slots=True)
class BestKnown:
    """The most `samples_per_second` that was measured, and the least `money_per_sample`: 0.0 without prices."""

    samples_per_second: float
    money_per_sample: float


@dataclass(frozen=True, slots=True)
class _Speed:
    num_slots: int
    type: str
    speed: float
    rate: float

    def fits(self, limits: Limits) -> bool:
        """The job may have such slots. Of one with parameter servers reports count those as well."""
        most = limits.max_slots if limits.servers is None else self.num_slots
        return limits.min_slots <= self.num_slots <= most and (not limits.types or self.type in limits.types)


def best_known(tx: Tx, wanted: Mapping[str, tuple[str, Limits]]) -> dict[str, BestKnown]:
    """By job, of `wanted` (its task and its limits): what it measured itself, else what the last jobs of its task did
    on slots that it may have. Absent where nothing was measured."""
    if not wanted:
        return {}
    own = _speeds_of(tx, list(wanted))
    tasks = sorted({task for job_id, (task, _) in wanted.items() if job_id not in own})
    of_task: dict[str, list[str]] = {}
    if tasks:
        asked = {"tasks": tasks, "leases": NEWEST_LEASES, "most": JOBS_OF_TASK}
        for task, job_id in tx.session.execute(OF_TASKS, asked):
            of_task.setdefault(task, []).append(job_id)
    others = _speeds_of(tx, [job_id for job_ids in of_task.values() for job_id in job_ids])
    found = {}
    for job_id, (task, limits) in wanted.items():
        like = [speed for other in of_task.get(task, ()) for speed in others.get(other, ()) if speed.fits(limits)]
        best = _best(own.get(job_id, like))
        if best is not None:
            found[job_id] = best
    return found


def _speeds_of(tx: Tx, job_ids: Sequence[str]) -> dict[str, list[_Speed]]:
    if not job_ids:
        return {}
    found: dict[str, list[_Speed]] = {}
    for job_id, *speed in tx.session.execute(SPEEDS, {"jobs": list(job_ids), "recent": RECENT}):
        found.setdefault(job_id, []).append(_Speed(*speed))
    return found


def _best(speeds: Iterable[_Speed]) -> BestKnown | None:
    speeds = list(speeds)
    if not speeds:
        return None
    cheapest = min(known.rate / (3600.0 * known.speed) for known in speeds)
    return BestKnown(max(known.speed for known in speeds), cheapest)


def profiles(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, tuple[ProfilePoint, ...]]:
    points_by_job: dict[str, list[ProfilePoint]] = {}
    for row in tx.session.execute(PROFILE, {"jobs": list(job_ids), "recent": RECENT, "quartile": QUARTILE}).mappings():
        point = {key: value for key, value in row.items() if key not in ("job_id", "layout")}
        point["layout"] = None if row["layout"] is None else from_json(Layout, row["layout"])
        points_by_job.setdefault(row["job_id"], []).append(ProfilePoint(**point))
    return {job_id: as_profile(points) for job_id, points in points_by_job.items()}


def placed_speeds(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, tuple[PlacedSpeed, ...]]:
    """Of the placed jobs among these."""
    speeds: dict[str, list[PlacedSpeed]] = {}
    for row in tx.session.execute(PLACED, {"jobs": list(job_ids), "recent": RECENT, "quartile": QUARTILE}).mappings():
        speed = row["global_batch"] / row["step_seconds"]
        measured = {"stages": row["stages"], "samples_per_second": speed, "count": row["count"]}
        speeds.setdefault(row["job_id"], []).append(from_json(PlacedSpeed, measured))
    return {job_id: as_placed_speeds(of_job) for job_id, of_job in speeds.items()}


def noise_scales(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, float]:
    """Gradient noise scale in samples; absent where it was not measured, or |E g|^2 came out as zero or less."""
    rows = tx.session.execute(NOISE, {"jobs": list(job_ids), "window": NOISE_WINDOW})
    return {job_id: float(var / sqr) for job_id, var, sqr in rows if sqr > 0 and var >= 0}


def pasts(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Past]:
    rows = tx.session.execute(PAST, {"jobs": list(job_ids), "now": tx.now})
    return {job_id: Past(float(spent or 0), *others) for job_id, spent, *others in rows}
