"""The model of a task under some limits, and what it says of every option and batch: of many tasks at once, remembered.

A task's model is made anew when its measurements or the speeds of types (`policy.horizon.speeds.type_prior`) have
changed; those of one decision are fitted and tabulated together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastic_core.domain import Limits, ProfilePoint
from elastic_core.policy.base.options import Key
from elastic_core.policy.horizon.speeds.corrected import Corrected, seconds_of
from elastic_core.predict.remembered import Remembered
from elastic_core.predict.speed.exchange_forecast import ExchangeForecast
from elastic_core.predict.speed.experience import Experience
from elastic_core.predict.speed.fit import step_times
from elastic_core.predict.speed.goodput import Speeds, coarse_batches
from elastic_core.predict.speed.step_form import Shapes
from elastic_core.predict.speed.throughput import Ints, split

COLD_START_SLOTS = 2  # slots that the first job of a task starts on
_CELLS = 2**17  # of the tables that are made together: larger arrays do not fit the caches


@dataclass(frozen=True, eq=False)
class TaskModel:
    corrected: Corrected
    speeds: Speeds  # every option that jobs of the task may have now (rows) and batch (columns)
    at: Ints  # those options
    reach: int  # the most slots that they may have now: they start on few, and at most double what was measured
    reference_batch: int
    scale_invariant: bool  # the unit of its work


# (measurements, limits without requests, options, speeds of types, unit of the work, exchanges to choose from)
Described = tuple[tuple[ProfilePoint, ...], Limits, Key, Experience, bool, ExchangeForecast | None]


@dataclass(frozen=True, eq=False)
class _Grid:
    """The batches (columns) to try on each option (rows) under some limits."""

    kind_index: Ints
    slots: Ints
    nodes: Ints
    batches: Ints
    local: Ints
    accumulation: Ints


def _find(tasks: Sequence[Described]) -> list[TaskModel]:
    times = step_times.all([(points, limits, experience) for points, limits, _, experience, *_ in tasks])
    corrected = Corrected.of_all(times, [task[0] for task in tasks], [task[5] for task in tasks])
    reaches = [_reach(points, limits) for points, limits, *_ in tasks]
    tables: list[tuple[Speeds, Ints] | None] = [None] * len(tasks)
    alike: defaultdict[tuple[Key, tuple[int, ...]], list[int]] = defaultdict(list)
    for index, (task, reach) in enumerate(zip(tasks, reaches, strict=True)):
        alike[task[2], _usable(task[1], task[2], reach)].append(index)
    for (options, usable), indices in alike.items():
        grids = [_grid(tasks[index][1], options, usable) for index in indices]
        kinds = tuple(kind for kind, _, _ in options)
        at_once = max(_CELLS // max(max(grid.batches.size for grid in grids), 1), 1)
        for first in range(0, len(indices), at_once):
            some = slice(first, first + at_once)
            batch_tables = _tables([corrected[index] for index in indices[some]], kinds, grids[some])
            for index, speeds in zip(indices[some], batch_tables, strict=True):
                tables[index] = speeds, np.asarray(usable, dtype=np.int64)
    models = []
    for (_, limits, _, _, unit, _), own, reach, table in zip(tasks, corrected, reaches, tables, strict=True):
        assert table is not None
        models.append(TaskModel(own, *table, reach, limits.reference_batch, unit))
    return models


task_models: Remembered[Described, TaskModel] = Remembered(_find, most=16384)


def _reach(points: Sequence[ProfilePoint], limits: Limits) -> int:
    largest = max((point.num_slots for point in points), default=0)
    return max(limits.min_slots, 2 * largest if largest else COLD_START_SLOTS)


def _tables(models: Sequence[Corrected], kinds: tuple[str, ...], grids: Sequence[_Grid]) -> list[Speeds]:
    """A batch is what all ranks share, however evenly: the fullest rank sets the time."""
    width = max(grid.batches.shape[1] for grid in grids)
    local, accumulation = (
        np.stack([_widened(of, width) for of in tables])
        for tables in ([grid.local for grid in grids], [grid.accumulation for grid in grids])
    )
    slots, nodes, kind_index = (of[None, :, None] for of in (grids[0].slots, grids[0].nodes, grids[0].kind_index))
    seconds = seconds_of(models, kinds, Shapes(slots, nodes, local, accumulation, kind_index))
    return [
        Speeds(grid.batches / of_task[:, : grid.batches.shape[1]], grid.batches, grid.local, grid.accumulation)
        for grid, of_task in zip(grids, seconds, strict=True)
    ]


def _widened(batches: Ints, width: int) -> Ints:
    """The last column repeated."""
    if batches.shape[1] == width:
        return batches
    return batches[:, np.minimum(np.arange(width), batches.shape[1] - 1)]


@lru_cache(maxsize=16384)
def _usable(limits: Limits, options: Key, reach: int) -> tuple[int, ...]:
    """The options that a job may have of so many slots at most."""
    every = [(kind, count) for kind, counts, _ in options for count in counts]
    return tuple(at for at, (kind, count) in enumerate(every) if count <= reach and _may_run(limits, kind, count))


@lru_cache(maxsize=16384)
def _grid(limits: Limits, options: Key, usable: tuple[int, ...]) -> _Grid:
    """Of the usable options."""
    at = np.asarray(usable, dtype=np.int64)
    batches = [coarse_batches(limits, kind, counts) for kind, counts, _ in options]
    width = max(of_kind.shape[1] for of_kind in batches)
    slots = np.concatenate([np.asarray(counts) for _, counts, _ in options])
    most = [limits.max_local(kind) for kind, _, _ in options]
    parts = [
        split(of_kind, np.asarray(counts)[:, None], most_local)
        for of_kind, (_, counts, _), most_local in zip(batches, options, most, strict=True)
    ]
    return _Grid(
        np.repeat(np.arange(len(options)), [len(counts) for _, counts, _ in options])[at],
        slots[at],
        np.concatenate([np.asarray(num_nodes) for _, _, num_nodes in options])[at],
        *(
            np.concatenate([_widened(of_kind, width) for of_kind in tables])[at]
            for tables in (batches, [local for local, _ in parts], [accumulation for _, accumulation in parts])
        ),
    )


def _may_run(limits: Limits, kind: str, count: int) -> bool:
    return (not limits.types or kind in limits.types) and count in limits.slot_counts and count <= limits.max_batch
