"""Sums over all leases ever, in a time that only the leases since the last look take.

A lease that is over tells the same for ever, and no row of the ledger that is summed here is removed
(`transitions.retention`). So what lies before the oldest live lease is summed once by each process and remembered,
and every process, whenever it began, tells the same sums: a restart of the API server is none of a counter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import TextClause, text

from elastic_core.control.believable import timing
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.profiles import PRICED
from elastic_core.control.metrics.metric_families import CHECKPOINT_BOUNDS, RESIZE_BOUNDS
from elastic_core.domain.number_ranges import INSTANT, SECONDS

Key = tuple[str, ...]  # the tally's name, then its labels
Row = tuple[bool, Key, float]  # whether it stays so, what, how much

_FINAL = text("""
    SELECT coalesce((SELECT min(epoch) FROM leases WHERE released_at IS NULL), (SELECT max(epoch) + 1 FROM leases), 0)
""")
_JOBS = text("SELECT DISTINCT job_id FROM leases WHERE epoch >= :since")
_RESIZES = text(f"""
    {PRICED}
    SELECT epoch < :final AS final,
           CASE WHEN NOT restarted THEN 'in_place' WHEN moved THEN 'restart' ELSE 'retry' END AS kind,
           CASE WHEN pause IS NOT NULL AND (first_step_at IS NOT NULL OR epoch < :final)
                THEN width_bucket(greatest(pause, 0), CAST(:bounds AS float8[])) END AS bucket,
           count(*) AS number, coalesce(sum(greatest(pause, 0)), 0) AS seconds
    FROM priced WHERE epoch >= :since AND epoch_before IS NOT NULL AND (restarted OR moved)
    GROUP BY 1, 2, 3
""")
_HELD = text("""
    SELECT l.epoch < :final, coalesce(j.spec ->> 'queue', 'default'), s.node,
           sum(coalesce(h.released_at, :now) - l.granted_at)
    FROM leases l JOIN jobs j ON j.id = l.job_id
    JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot
    WHERE l.epoch >= :since GROUP BY 1, 2, 3
""")
_TRAINED = text(f"""
    SELECT l.epoch < :final, coalesce(j.spec ->> 'queue', 'default'), sum(l.num_slots * greatest(0,
           least(c.last_at, l.released_at) - greatest(c.first_at, l.granted_at)))
    FROM leases l JOIN jobs j ON j.id = l.job_id
    CROSS JOIN LATERAL (
        SELECT min({timing("first_step_at", INSTANT)}) AS first_at,
               max(coalesce({timing("last_step_at", INSTANT)}, committed_at)) AS last_at
        FROM checkpoints WHERE epoch = l.epoch
    ) c
    WHERE l.epoch >= :since AND c.first_at IS NOT NULL GROUP BY 1, 2
""")
_SAVE = timing("save", SECONDS)
_CHECKPOINTS = text(f"""
    SELECT epoch < :final, width_bucket({_SAVE}, CAST(:bounds AS float8[])), count(*),
           coalesce(sum({_SAVE}), 0), sum(size_bytes)
    FROM checkpoints WHERE epoch >= :since GROUP BY 1, 2
""")


class Tallies:
    """Not safe to use from several threads."""

    def __init__(self) -> None:
        self._since = 0  # epochs before it are in `_final`
        self._final: dict[Key, float] = {}

    def read(self, tx: Tx) -> Mapping[Key, float]:
        """`resizes KIND`, `resize KIND BUCKET` and `resize seconds KIND`, `held QUEUE NODE`, `trained QUEUE`,
        `checkpoints`, `checkpoint BUCKET`, `checkpoint seconds`, `bytes`. A bucket is named by its place, from 0."""
        final: int = tx.session.execute(_FINAL).scalar_one()
        told, stay = defaultdict(float, self._final), defaultdict(float, self._final)
        for stays, key, amount in _rows(tx, {"since": self._since, "final": final, "now": tx.now}):
            told[key] += amount
            if stays:
                stay[key] += amount
        self._final, self._since = stay, max(self._since, final)
        return told


def _rows(tx: Tx, given: dict[str, Any]) -> Iterator[Row]:
    def asked(query: TextClause, **more: Any) -> Iterable[Any]:
        return tx.session.execute(query, {**given, **more})

    jobs = list(tx.session.scalars(_JOBS, given))
    for stays, kind, bucket, number, seconds in asked(_RESIZES, jobs=jobs, bounds=list(RESIZE_BOUNDS)):
        yield stays, ("resizes", kind), number
        if bucket is not None:
            yield stays, ("resize", kind, str(bucket)), number
            yield stays, ("resize seconds", kind), seconds
    for stays, queue, node, seconds in asked(_HELD):
        yield stays, ("held", queue, node), seconds
    for stays, queue, seconds in asked(_TRAINED):
        yield stays, ("trained", queue), seconds or 0.0
    for stays, bucket, number, seconds, size in asked(_CHECKPOINTS, bounds=list(CHECKPOINT_BOUNDS)):
        yield stays, ("checkpoints",), number
        yield stays, ("bytes",), int(size)
        if bucket is not None:
            yield stays, ("checkpoint", str(bucket)), number
            yield stays, ("checkpoint seconds",), seconds
