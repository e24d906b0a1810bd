"""The latest reports of jobs, each read once: a decision reads what was reported since the one before.

Profiles are made of thousands of reports a job (`snapshot.job_reports`), which a job that has run for two hours has.
`ledger.profiles` sums them up in SQL, all of them each time. Here they are kept by the process that decides: some
80 KB a job: of a configuration that no kept report has nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import RowMapping, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.profiles import TIMED
from elastic_core.domain import Layout, ProfilePoint, from_json
from elastic_core.snapshot.job_reports import QUARTILE, RECENT, as_profile

# Arrays are of one order: it is one pass over the rows.
_NEWEST = text(f"""
    SELECT o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation, o.layout, o.comm,
           array_agg(o.id) AS ids, array_agg(o.step_seconds) AS steps, array_agg(o.sync_seconds) AS syncs
    FROM unnest(CAST(:jobs AS text[]), CAST(:since AS bigint[])) AS wanted (id, since)
    JOIN jobs j ON j.id = wanted.id AND coalesce(j.spec ->> 'placement', 'none') = 'none'
    CROSS JOIN LATERAL (
        SELECT * FROM observations
        WHERE job_id = wanted.id AND id > wanted.since AND {TIMED}
        ORDER BY id DESC LIMIT :recent
    ) AS o
    GROUP BY o.job_id, o.num_slots, o.num_nodes, o.type, o.global_batch, o.local_batch, o.accumulation, o.layout,
             o.comm
""")
_CONFIGURATION = ("num_slots", "num_nodes", "type", "global_batch", "local_batch", "accumulation", "comm")
AT_ONCE = 100  # jobs whose reports are read by one statement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Window:
    """Of one job: its latest reports, the oldest first, and the point of each configuration that is among them."""

    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    made_with: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # numbers of configurations
    seconds: Floats = field(default_factory=lambda: np.empty((2, 0)))  # of a step, and of its exchange
    numbers: dict[ProfilePoint, int] = field(default_factory=dict)  # of points without times, while there are reports
    points: dict[ProfilePoint, ProfilePoint] = field(default_factory=dict)  # of each: with its times
    numbered: int = 0  # so far

    @property
    def last(self) -> int:
        return int(self.ids[-1]) if self.ids.size else -1

    def add(self, rows: Sequence[RowMapping]) -> None:
        """Later reports, by configuration."""
        numbers = np.repeat([self._number(row) for row in rows], [len(row["ids"]) for row in rows])
        ids = np.concatenate([np.array(row["ids"], np.int64) for row in rows])
        seconds = np.concatenate([np.array((row["steps"], row["syncs"]), np.float64) for row in rows], axis=1)
        order = np.argsort(ids)
        made_with = np.concatenate((self.made_with, numbers[order]))
        self.ids = np.concatenate((self.ids, ids[order]))[-RECENT:]
        self.seconds = np.concatenate((self.seconds, seconds[:, order]), axis=1)[:, -RECENT:]
        self.made_with = made_with[-RECENT:]
        changed = {*numbers.tolist(), *made_with[:-RECENT].tolist()}
        for configuration, number in [item for item in self.numbers.items() if item[1] in changed]:
            self._sum_up(configuration, number)

    def _number(self, row: RowMapping) -> int:
        layout = None if row["layout"] is None else from_json(Layout, row["layout"])
        named = {name: row[name] for name in _CONFIGURATION}
        configuration = ProfilePoint(**named, layout=layout, step_seconds=0.0, sync_seconds=0.0, count=0)
        if configuration not in self.numbers:
            self.numbers[configuration] = self.numbered
            self.numbered += 1
        return self.numbers[configuration]

    def _sum_up(self, configuration: ProfilePoint, number: int) -> None:
        step, sync = self.seconds[:, self.made_with == number]
        if step.size:
            self.points[configuration] = replace(
                configuration, step_seconds=_lower_quartile(step), sync_seconds=_lower_quartile(sync), count=step.size
            )
        else:  # all of its reports are too old
            del self.numbers[configuration]
            self.points.pop(configuration, None)


class ReportWindows:
    """Of one process; safe to use from many threads. A report that is committed after a later one of its job is not
    seen."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._windows: dict[str, _Window] = {}

    def profiles(self, tx: Tx, job_ids: Sequence[str]) -> Mapping[str, tuple[ProfilePoint, ...]]:
        """As `ledger.profiles.profiles`; jobs that are not asked for are forgotten."""
        with self._lock:
            self._windows = {job_id: self._windows.get(job_id) or _Window() for job_id in job_ids}
            for first in range(0, len(job_ids), AT_ONCE):
                self._read(tx, job_ids[first : first + AT_ONCE])
            return {
                job_id: as_profile(window.points.values()) for job_id, window in self._windows.items() if window.points
            }

    def _read(self, tx: Tx, job_ids: Sequence[str]) -> None:
        since = [self._windows[job_id].last for job_id in job_ids]
        rows_by_job: dict[str, list[RowMapping]] = {}
        given = {"jobs": list(job_ids), "since": since, "recent": RECENT}
        for row in tx.session.execute(_NEWEST, given).mappings():
            rows_by_job.setdefault(row["job_id"], []).append(row)
        for job_id, rows in rows_by_job.items():
            self._windows[job_id].add(rows)


def _lower_quartile(values: Floats) -> float:
    """As `job_reports.lower_quartile`."""
    place = QUARTILE * (values.size - 1)
    below = floor(place)
    above = min(below + 1, values.size - 1)
    ordered = np.partition(values, (below, above))
    if place == below:
        return float(ordered[below])
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
