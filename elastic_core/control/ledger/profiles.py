"""What a decision may know from measurements: step times per configuration, gradient noise, times and resizes so far.

Defined in `snapshot.job_reports` and `snapshot.past`, and held to it by a test. Here all of it is summed up in SQL,
over the latest observations only, so that a long job costs no more than a short one. `best_known` is for whoever asks
whether a job that has no speed of its own now, since it waits, can still be done in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from sqlalchemy import text

from elastic_core.control.believable import believed, timing, within
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.domain import JobState, Layout, Limits, PlacedSpeed, ProfilePoint, from_json
from elastic_core.domain.number_ranges import AMOUNT, GAIN, INSTANT, NOISE_SCALE, NORM, STEP_SECONDS, Within
from elastic_core.snapshot.job_reports import NOISE_WINDOW, QUARTILE, RECENT, as_placed_speeds, as_profile
from elastic_core.snapshot.past import Past

TIMED = within("step_seconds", STEP_SECONDS)
_SPEED = Within(1.0 / STEP_SECONDS.most, AMOUNT.most)  # samples a second: from one in the longest step on


def progress_rate(report: str, job: str) -> str:
    """SQL: the base-batch samples that a report's samples a second are worth; as many, where it tells no gain. Both
    names are aliases, of `observations` and `jobs`; its speed must be of the range of amounts."""
    base = f"coalesce({job}.spec #>> '{{batch,base}}', {job}.spec #>> '{{batch,min}}')::float8"
    worth = f"({believed(f'{report}.gain', GAIN)}) * {base} / nullif({report}.global_batch, 0)"
    return f"{report}.samples_per_second * coalesce({worth}, 1)"


PROFILE = text(f"""
    SELECT o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation,
           o.layout, o.comm,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.step_seconds) AS step_seconds,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.sync_seconds) AS sync_seconds,
           count(*) AS count
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id AND coalesce(j.spec ->> 'placement', 'none') = 'none'
    CROSS JOIN LATERAL (
        SELECT * FROM observations WHERE job_id = wanted.id AND {TIMED}
        ORDER BY id DESC LIMIT :recent
    ) AS o
    GROUP BY o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation, o.layout,
             o.comm
""")

# Of a placed job, whose reports are told apart by the stages of the lease that they were made under.
PLACED = text(f"""
    SELECT o.job_id, l.allocation -> 'stages' AS stages, max(o.global_batch) AS global_batch,
           percentile_cont(:quartile) WITHIN GROUP (ORDER BY o.step_seconds) AS step_seconds, count(*) AS count
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id AND coalesce(j.spec ->> 'placement', 'none') <> 'none'
    CROSS JOIN LATERAL (
        SELECT * FROM observations WHERE job_id = wanted.id AND {TIMED}
        ORDER BY id DESC LIMIT :recent
    ) AS o
    JOIN leases l ON l.epoch = o.epoch
    WHERE l.allocation ? 'stages'
    GROUP BY o.job_id, l.allocation -> 'stages'
""")

# The average of larger numbers overflows.
NOISE = text(f"""
    SELECT wanted.id, avg(o.grad_var) AS var, avg(o.grad_sqr) AS sqr
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT grad_var, grad_sqr FROM observations
        WHERE job_id = wanted.id AND {within("grad_var", NORM)} AND {within("grad_sqr", NORM)}
        ORDER BY id DESC LIMIT :window
    ) AS o
    GROUP BY wanted.id
""")

_HELD = "(l.allocation - 'global_batch' - 'expected_comm')"  # all that is a move where it changes

# Leases with what begins each, and the seconds without a step that it began with (`pause`), of `:jobs`: of each from
# the last one on that `lease_sums` holds and that was before `:since`, to which the next one is compared.
PRICED = f"""
    WITH history AS (
        SELECT l.job_id, l.segment_id, l.epoch, l.num_slots, l.granted_at, l.started_at, l.released_at, s.lineage,
               CASE WHEN s.asked_at <= l.granted_at THEN s.asked_at END AS asked_at,
               l.epoch = l.origin_epoch AS restarted,
               lag({_HELD}) OVER w <> {_HELD} AS moved,
               lag(l.epoch) OVER w AS epoch_before,
               lag(l.released_at) OVER w AS gone_at,
               lag(s.ended_at) OVER w AS ended_at,
               lag(s.end_checkpoint_id) OVER w AS ended_with
        FROM leases l JOIN segments s ON s.id = l.segment_id
        LEFT JOIN lease_sums f ON f.job_id = l.job_id AND f.up_to_epoch < :since
        WHERE l.job_id = ANY (CAST(:jobs AS text[])) AND l.epoch >= coalesce(f.up_to_epoch, 0)
        WINDOW w AS (PARTITION BY l.job_id ORDER BY l.epoch)
    ), priced AS (
        SELECT h.*, next.step_at AS first_step_at, CASE
            WHEN restarted THEN coalesce(next.step_at, started_at) - granted_at
                 + greatest(gone_at + greatest(asked_at - gone_at, 0) - coalesce(last.step_at, ended_at), 0)
            ELSE next.step_at - last.step_at END AS pause
        FROM (SELECT *, first_value(ended_with) OVER (PARTITION BY job_id, segment_id ORDER BY epoch) AS began_with
              FROM history) h  -- a segment that is tried again starts later: its first attempt's checkpoints are before
        LEFT JOIN LATERAL (
            SELECT {timing("last_step_at", INSTANT)} AS step_at FROM checkpoints
            WHERE (h.restarted OR h.moved) AND id = h.ended_with AND epoch = h.epoch_before
        ) last ON true
        LEFT JOIN LATERAL (
            SELECT {timing("first_step_at", INSTANT)} AS step_at FROM checkpoints c
            WHERE (h.restarted OR h.moved) AND c.job_id = h.job_id AND c.lineage = h.lineage AND c.epoch = h.epoch
              AND c.step >= coalesce(
                  (SELECT step FROM checkpoints b WHERE b.id = h.began_with AND b.lineage = h.lineage), 0)
            ORDER BY c.step LIMIT 1
        ) next ON true
    )
"""
_ADDED = (  # to `lease_sums`, by column; pauses, each as their number and their sum
    "slot_seconds", "num_resizes", "num_moves", "move_seconds", "num_in_place", "in_place_seconds", "num_restarts",
    "restart_seconds", "num_starts", "start_seconds",
)  # fmt: skip
_LATEST = ("last_resize_at", "allocated_since")
_SUMMED = f"""
    {PRICED}, unsummed AS (
        SELECT p.*, p.epoch_before IS NULL AS first,
               CASE WHEN p.pause IS NOT NULL THEN greatest(p.pause, 0) END AS lost,
               p.restarted OR coalesce(p.moved, false) AS interrupted
        FROM priced p LEFT JOIN lease_sums f ON f.job_id = p.job_id
        WHERE p.epoch > coalesce(f.up_to_epoch, -1) AND p.epoch <= :up_to
    ), added AS (
        SELECT job_id, max(epoch) AS up_to_epoch,
               sum(num_slots * (coalesce(released_at, :now) - granted_at)) AS slot_seconds,
               count(*) FILTER (WHERE interrupted AND NOT first) AS num_resizes,
               max(granted_at) FILTER (WHERE interrupted AND NOT first) AS last_resize_at,
               max(granted_at) FILTER (WHERE interrupted) AS allocated_since,
               count(lost) FILTER (WHERE moved) AS num_moves,
               sum(lost) FILTER (WHERE moved) AS move_seconds,
               count(lost) FILTER (WHERE moved AND NOT restarted) AS num_in_place,
               sum(lost) FILTER (WHERE moved AND NOT restarted) AS in_place_seconds,
               count(lost) FILTER (WHERE restarted AND NOT first) AS num_restarts,
               sum(lost) FILTER (WHERE restarted AND NOT first) AS restart_seconds,
               count(lost) FILTER (WHERE restarted AND first) AS num_starts,
               sum(lost) FILTER (WHERE restarted AND first) AS start_seconds
        FROM unsummed GROUP BY job_id
    ), summed AS (
        SELECT a.job_id, a.up_to_epoch,
               {", ".join(f"coalesce(a.{name}, 0) + coalesce(f.{name}, 0) AS {name}" for name in _ADDED)},
               {", ".join(f"coalesce(a.{name}, f.{name}) AS {name}" for name in _LATEST)}
        FROM added a LEFT JOIN lease_sums f ON f.job_id = a.job_id
    )
"""
PAST = text(f"""
    {_SUMMED}
    SELECT job_id, slot_seconds, num_resizes, last_resize_at, allocated_since,
           coalesce(move_seconds / nullif(num_moves, 0), restart_seconds / nullif(num_restarts, 0),
                    start_seconds / nullif(num_starts, 0)) AS resize_seconds,
           in_place_seconds / nullif(num_in_place, 0) AS in_place_seconds,
           coalesce(restart_seconds / nullif(num_restarts, 0), start_seconds / nullif(num_starts, 0)) AS restart_seconds
    FROM summed
""")

SUM_UP = text(f"""
    {_SUMMED}
    INSERT INTO lease_sums AS kept (job_id, up_to_epoch, {", ".join((*_ADDED, *_LATEST))})
    SELECT job_id, up_to_epoch, {", ".join((*_ADDED, *_LATEST))} FROM summed
    ON CONFLICT (job_id) DO UPDATE SET up_to_epoch = excluded.up_to_epoch,
        {", ".join(f"{name} = excluded.{name}" for name in (*_ADDED, *_LATEST))}
    WHERE kept.up_to_epoch < excluded.up_to_epoch
""")
# The last lease that ends its segment, with none before it that may still change; never the newest of the job.
SUMMABLE = text("""
    WITH unsummed AS (
        SELECT l.epoch, s.epoch = l.epoch AS ends_segment, l.released_at IS NOT NULL AND s.ended_at IS NOT NULL AS over
        FROM leases l JOIN segments s ON s.id = l.segment_id
        WHERE l.job_id = :job
          AND l.epoch > coalesce((SELECT up_to_epoch FROM lease_sums WHERE job_id = :job), -1)
    )
    SELECT max(epoch) FROM unsummed
    WHERE ends_segment AND epoch < (SELECT coalesce(min(epoch) FILTER (WHERE NOT over), max(epoch)) FROM unsummed)
""")
UNSUMMED = text("""
    SELECT j.id FROM jobs j LEFT JOIN lease_sums f ON f.job_id = j.id
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT FROM leases WHERE job_id = j.id AND epoch > coalesce(f.up_to_epoch, -1) LIMIT :most + 1) AS l
    ) AS unsummed
    WHERE j.state = :active AND unsummed.number > :most ORDER BY j.id
""")
MOST_UNSUMMED = 100  # leases of a job
NO_EPOCH = 2**62  # after all

# Median samples per second over the latest reports of each of a job's last leases, the same of the base-batch samples
# that they are worth, and what its slots cost an hour.
SPEEDS = text(f"""
    SELECT wanted.id, told.num_slots, told.type, told.samples, told.progress, coalesce((
        SELECT sum(n.price_per_slot_hour)
        FROM lease_slots h JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
        WHERE h.epoch = lease.epoch), 0) AS rate
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id
    CROSS JOIN LATERAL (
        SELECT epoch FROM leases WHERE job_id = wanted.id ORDER BY epoch DESC LIMIT :leases
    ) AS lease
    CROSS JOIN LATERAL (
        SELECT num_slots, type, percentile_cont(0.5) WITHIN GROUP (ORDER BY samples) AS samples,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY progress) AS progress
        FROM (
            SELECT o.num_slots, o.type, o.samples_per_second AS samples, {progress_rate("o", "j")} AS progress
            FROM observations o
            WHERE o.epoch = lease.epoch AND {within("o.samples_per_second", _SPEED)}
            ORDER BY o.step DESC LIMIT :reports
        ) AS latest
        GROUP BY num_slots, type
    ) AS told
""")
LAST_LEASES, LATEST_REPORTS = 16, 50  # of a job, and of each of them

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
    """The most that was measured, in samples and in the unit of the job's work, and the least that one of them costs:
    0.0 without prices."""

    samples_per_second: float
    work_per_second: float
    money_per_sample: float
    money_per_work: float

    def seconds(self, work: float, samples: float = inf) -> float:
        """To do this work, or until so many samples are read, whichever is sooner."""
        return min(work / self.work_per_second, samples / self.samples_per_second)

    def money(self, work: float, samples: float) -> float:
        """The same in money."""
        return min(work * self.money_per_work, samples * self.money_per_sample)


@dataclass(frozen=True, slots=True)
class _Speed:
    num_slots: int
    type: str
    samples: float  # a second
    progress: float  # a second
    rate: float  # money an hour

    def fits(self, limits: Limits) -> bool:
        """The job may have such slots. Of one with parameter servers reports count those as well."""
        most = limits.max_slots if limits.servers is None else self.num_slots
        return limits.min_slots <= self.num_slots <= most and (not limits.types or self.type in limits.types)


def best_known(tx: Tx, wanted: Mapping[str, tuple[str, Limits, bool]]) -> dict[str, BestKnown]:
    """By job, of `wanted` (its task, its limits, and whether its work is progress): what it measured itself, else what
    the last jobs of its task did on slots that it may have. Absent where nothing was measured."""
    if not wanted:
        return {}
    own = _speeds_of(tx, list(wanted))
    tasks = sorted({task for job_id, (task, *_) in wanted.items() if job_id not in own})
    of_task: dict[str, list[str]] = {}
    if tasks:
        asked = {"tasks": tasks, "leases": NEWEST_LEASES, "most": JOBS_OF_TASK}
        for task, job_id in tx.session.execute(OF_TASKS, asked):
            of_task.setdefault(task, []).append(job_id)
    others = _speeds_of(tx, [job_id for job_ids in of_task.values() for job_id in job_ids])
    found = {}
    for job_id, (task, limits, in_progress) in wanted.items():
        like = [speed for other in of_task.get(task, ()) for speed in others.get(other, ()) if speed.fits(limits)]
        best = _best(own.get(job_id, like), in_progress=in_progress)
        if best is not None:
            found[job_id] = best
    return found


def _speeds_of(tx: Tx, job_ids: Sequence[str]) -> dict[str, list[_Speed]]:
    if not job_ids:
        return {}
    found: dict[str, list[_Speed]] = {}
    asked = {"jobs": list(job_ids), "leases": LAST_LEASES, "reports": LATEST_REPORTS}
    for job_id, *speed in tx.session.execute(SPEEDS, asked):
        found.setdefault(job_id, []).append(_Speed(*speed))
    return found


def _best(speeds: Sequence[_Speed], *, in_progress: bool) -> BestKnown | None:
    if not speeds:
        return None
    works = [known.progress if in_progress else known.samples for known in speeds]
    return BestKnown(
        samples_per_second=max(known.samples for known in speeds),
        work_per_second=max(works),
        money_per_sample=min(known.rate / (3600.0 * known.samples) for known in speeds),
        money_per_work=min(known.rate / (3600.0 * work) for known, work in zip(speeds, works, strict=True)),
    )


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
    scales = {job_id: float(var / sqr) for job_id, var, sqr in rows if sqr > 0 and var >= 0}
    return {job_id: scale for job_id, scale in scales.items() if NOISE_SCALE.holds(scale)}


def pasts(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Past]:
    rows = tx.session.execute(PAST, {"jobs": list(job_ids), "now": tx.now, "since": NO_EPOCH, "up_to": NO_EPOCH})
    return {job_id: Past(float(spent or 0), *others) for job_id, spent, *others in rows}


def sum_up_leases(ledger: Ledger, most: int = MOST_UNSUMMED) -> None:
    """Keep what the leases of long jobs come to, so that no decision has to read more than `most` of each, and those
    since the last call. May be repeated at will, and by several at once: what is kept are totals of one moment."""
    for job_id in ledger.read(lambda tx: tx.session.scalars(UNSUMMED, {"most": most, "active": JobState.ACTIVE}).all()):
        ledger.write(partial(_sum_up, job_id))


def _sum_up(job_id: str, tx: Tx) -> None:
    up_to = tx.session.scalar(SUMMABLE, {"job": job_id})
    if up_to is not None:
        tx.session.execute(SUM_UP, {"jobs": [job_id], "now": tx.now, "since": NO_EPOCH, "up_to": up_to})
