"""What a decision may know from measurements: step times per configuration, gradient noise, times and resizes so far.

A step is slowed by whatever else runs on its hosts and by nothing made faster, so that a configuration's time is the
lower quartile of its reports: a job measured beside a busy neighbour is not taken for one that scales badly.

All of it is summed up in SQL, over the latest observations only, so that a long job costs no more than a short one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from elastic_core.control.database import Tx
from elastic_core.domain import Layout, ProfilePoint, from_json

RECENT = 3000  # observations of a job that its profile is made of
NOISE_WINDOW = 50  # observations that the gradient noise scale is averaged over

PROFILE = text("""
    SELECT o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation,
           o.layout,
           percentile_cont(0.25) WITHIN GROUP (ORDER BY o.step_seconds) AS step_seconds,
           percentile_cont(0.25) WITHIN GROUP (ORDER BY o.sync_seconds) AS sync_seconds,
           count(*) AS count
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT * FROM observations WHERE job_id = wanted.id AND step_seconds > 0 AND step_seconds < 'Infinity'
        ORDER BY id DESC LIMIT :recent
    ) AS o
    GROUP BY o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation, o.layout
    ORDER BY 1, 2, 3, 4, 5, 6, 7, o.layout NULLS FIRST
""")

# B_simple = tr(cov g) / |E g|^2, both averaged before dividing (McCandlish et al. 2018, appendix A). NaN is dropped:
# in PostgreSQL it is greater than any number.
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

# A restart: a lease that was not handed over and whose processes have started. What it costs: from the boundary's
# commit until the old processes are gone, and from the grant until the first heartbeat; waiting for slots is no cost
# of the restart.
PAST = text("""
    WITH history AS (
        SELECT l.job_id, l.epoch, l.origin_epoch, l.num_slots, l.granted_at, l.started_at, l.released_at,
               lag(l.num_slots) OVER w AS slots_before,
               greatest(lag(l.released_at) OVER w - lag(s.ended_at) OVER w, 0) AS stopping
        FROM leases l JOIN segments s ON s.id = l.segment_id
        WHERE l.job_id = ANY (CAST(:jobs AS text[]))
        WINDOW w AS (PARTITION BY l.job_id ORDER BY l.epoch)
    )
    SELECT job_id,
           sum(num_slots * (coalesce(released_at, :now) - granted_at)) AS slot_seconds,
           count(*) FILTER (WHERE num_slots <> slots_before) AS num_resizes,
           max(granted_at) FILTER (WHERE num_slots <> slots_before) AS last_resize_at,
           avg(started_at - granted_at + coalesce(stopping, 0))
               FILTER (WHERE epoch = origin_epoch AND slots_before IS NOT NULL AND started_at IS NOT NULL)
               AS resize_seconds
    FROM history GROUP BY job_id
""")


@dataclass(frozen=True, slots=True)
class Past:
    slot_seconds: float = 0.0
    num_resizes: int = 0
    last_resize_at: float | None = None
    resize_seconds: float | None = None


def profiles(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, tuple[ProfilePoint, ...]]:
    found: dict[str, list[ProfilePoint]] = {}
    for row in tx.session.execute(PROFILE, {"jobs": list(job_ids), "recent": RECENT}).mappings():
        point = {key: value for key, value in row.items() if key not in ("job_id", "layout")}
        point["layout"] = None if row["layout"] is None else from_json(Layout, row["layout"])
        found.setdefault(row["job_id"], []).append(ProfilePoint(**point))
    return {job_id: tuple(points) for job_id, points in found.items()}


def noise_scales(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, float]:
    """Gradient noise scale in samples; absent where it was not measured, or |E g|^2 came out as zero or less."""
    rows = tx.session.execute(NOISE, {"jobs": list(job_ids), "window": NOISE_WINDOW})
    return {job_id: float(var / sqr) for job_id, var, sqr in rows if sqr > 0 and var >= 0}


def pasts(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Past]:
    rows = tx.session.execute(PAST, {"jobs": list(job_ids), "now": tx.now})
    return {job_id: Past(float(spent or 0), count, last, cost) for job_id, spent, count, last, cost in rows}
