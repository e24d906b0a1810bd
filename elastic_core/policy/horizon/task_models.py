"""The model of a task under some limits, and what it says of every option and batch: of many tasks at once, remembered.

A task's model is made anew when its measurements or the speeds of types (`policy.horizon.type_prior`) have changed;
those of one decision are fitted and tabulated together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import Limits, ProfilePoint
from elastic_core.policy.base.options import Key
from elastic_core.policy.horizon.corrected import Corrected, seconds_of
from elastic_core.predict.remembered import Remembered
from elastic_core.predict.speed.experience import Experience
from elastic_core.predict.speed.fit import step_times
from elastic_core.predict.speed.goodput import Speeds, coarse_batches
from elastic_core.predict.speed.step_form import Shapes
from elastic_core.predict.speed.throughput import Ints, split

_CELLS = 2**17  # of the tables that are made together: larger arrays do not fit the caches


@dataclass(frozen=True, eq=False)
class TaskModel:
    """Speeds: every option (rows) and batch (columns)."""

    corrected: Corrected
    speeds: Speeds
    reference_batch: int
    largest: int  # slots that were measured, 0 for none
    scale_invariant: bool  # the unit of its work


# (measurements, limits without requests, options, speeds of types, unit of the work)
Described = tuple[tuple[ProfilePoint, ...], Limits, Key, Experience, bool]


@dataclass(frozen=True, eq=False)
class _Grid:
    """The batches (columns) to try on each option (rows) under some limits."""

    kind_index: Ints
    slots: Ints
    nodes: Ints
    usable: NDArray[np.bool_]  # options that the limits allow
    batches: Ints
    local: Ints
    accumulation: Ints

    def widened(self, batches: Ints, width: int) -> Ints:
        """The last column repeated."""
        return batches[:, np.minimum(np.arange(width), batches.shape[1] - 1)]


def _find(tasks: Sequence[Described]) -> list[TaskModel]:
    times = step_times.all([(points, limits, experience) for points, limits, _, experience, _ in tasks])
    corrected = Corrected.of_all(times, [task[0] for task in tasks])
    tables: list[Speeds | None] = [None] * len(tasks)
    by_options: defaultdict[Key, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        by_options[task[2]].append(index)
    for options, indices in by_options.items():
        grids = [_grid(tasks[index][1], options) for index in indices]
        kinds = tuple(kind for kind, _, _ in options)
        at_once = max(_CELLS // max(grid.batches.size for grid in grids), 1)
        for first in range(0, len(indices), at_once):
            some = slice(first, first + at_once)
            batch_tables = _tables([corrected[index] for index in indices[some]], kinds, grids[some])
            for index, speeds in zip(indices[some], batch_tables, strict=True):
                tables[index] = speeds
    models = []
    for (points, limits, _, _, scale_invariant), own, speeds_of_own in zip(tasks, corrected, tables, strict=True):
        assert speeds_of_own is not None
        largest = max((point.num_slots for point in points), default=0)
        models.append(TaskModel(own, speeds_of_own, limits.reference_batch, largest, scale_invariant))
    return models


task_models: Remembered[Described, TaskModel] = Remembered(_find, most=16384)


def _tables(models: Sequence[Corrected], kinds: tuple[str, ...], grids: Sequence[_Grid]) -> list[Speeds]:
    """A batch is what all ranks share, however evenly: the fullest rank sets the time."""
    width = max(grid.batches.shape[1] for grid in grids)
    local, accumulation = (
        np.stack([grid.widened(of, width) for grid, of in zip(grids, tables, strict=True)])
        for tables in ([grid.local for grid in grids], [grid.accumulation for grid in grids])
    )
    slots, nodes, kind_index = (of[None, :, None] for of in (grids[0].slots, grids[0].nodes, grids[0].kind_index))
    seconds = seconds_of(models, kinds, Shapes(slots, nodes, local, accumulation, kind_index))
    tables_of_rows = []
    for row, grid in enumerate(grids):
        of_row = seconds[row, :, : grid.batches.shape[1]]
        samples = np.where(grid.usable[:, None], grid.batches / of_row, 0.0)
        tables_of_rows.append(Speeds(samples, grid.batches, grid.local, grid.accumulation))
    return tables_of_rows


@lru_cache(maxsize=16384)
def _grid(limits: Limits, options: Key) -> _Grid:
    batches = [coarse_batches(limits, kind, counts) for kind, counts, _ in options]
    width = max(of_kind.shape[1] for of_kind in batches)
    widened = np.concatenate([of_kind[:, np.minimum(np.arange(width), of_kind.shape[1] - 1)] for of_kind in batches])
    slots = np.concatenate([np.asarray(counts) for _, counts, _ in options])
    most = [limits.max_local(kind) for kind, _, _ in options]
    parts = [
        split(of_kind, np.asarray(counts)[:, None], most_local)
        for of_kind, (_, counts, _), most_local in zip(
            np.split(widened, np.cumsum([len(counts) for _, counts, _ in options])[:-1]), options, most, strict=True
        )
    ]
    return _Grid(
        np.repeat(np.arange(len(options)), [len(counts) for _, counts, _ in options]),
        slots,
        np.concatenate([np.asarray(num_nodes) for _, _, num_nodes in options]),
        np.asarray([_may_run(limits, kind, count) for kind, counts, _ in options for count in counts]),
        widened,
        np.concatenate([local for local, _ in parts]),
        np.concatenate([accumulation for _, accumulation in parts]),
    )


def _may_run(limits: Limits, kind: str, count: int) -> bool:
    return (not limits.types or kind in limits.types) and count in limits.slot_counts and count <= limits.max_batch
