"""Jobs as they were measured: the traces of Pollux (OSDI 2021) and Sia (SOSP 2023), read from `ELASTIC_DATA`.

Per model: step and synchronisation times by placement and local batch (`placements*.csv`; beyond those, interpolated
over (nodes, slots, local batch) together with `scalability*.csv`), and gradient statistics and progress by epoch at
several batches (`validation-<batch>.csv`). Columns are described in the data's README. The semantics are those of the
artefacts' own simulators: a job is done after its last epoch, progress of an epoch is the least over the batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator

from elastic_core.errors import UserError
from elastic_core.sim.ground_truth.physics import Nodes
from elastic_core.sim.traces.trace_files import read_table

Floats = NDArray[np.float64]

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
# Seconds of a restart and factor between simulated and real speed, as Sia's authors measured them.
SIA_RESCALE = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
SIA_SLOWDOWN = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}
POLLUX_RESCALE = 30.0
_LARGEST_CLUSTER = 16  # nodes that the scalability traces reach; larger ones behave like it


class StepTimes:
    """Step and synchronisation seconds of one model on one type of slot."""

    def __init__(self, folder: Path, suffix: str, max_local: int | None = None) -> None:
        columns = {"placement": str, "local_bsz": int, "step_time": float, "sync_time": float}
        tables: dict[str, list[tuple[int, float, float]]] = {}
        for row in read_table(folder / f"placements{suffix}.csv", columns):
            tables.setdefault(row["placement"], []).append((row["local_bsz"], row["step_time"], row["sync_time"]))
        self._tables = {name: np.asarray(sorted(rows), dtype=np.float64) for name, rows in tables.items()}
        self._scalability = folder / f"scalability{suffix}.csv"
        largest = max(int(rows[-1, 0]) for rows in self._tables.values())
        self.min_local = min(int(rows[0, 0]) for rows in self._tables.values())
        self.max_local = largest if max_local is None else min(max_local, largest)

    def limit(self, nodes: Nodes) -> int:
        """The largest local batch that was measured on this placement."""
        rows = self._tables.get(_name(nodes))
        if rows is not None:
            return min(self.max_local, int(rows[-1, 0]))
        wide = [
            int(local) for n, k, local in self._grid[0] if n >= min(len(nodes), _LARGEST_CLUSTER) and k >= sum(nodes)
        ]
        return min(self.max_local, max(wide, default=self.max_local))

    def at(self, nodes: Nodes, local: int) -> tuple[float, float]:
        """(step, sync) seconds, interpolated between what was measured."""
        rows = self._tables.get(_name(nodes))
        if rows is not None:
            return tuple(float(np.interp(local, rows[:, 0], rows[:, column])) for column in (1, 2))  # type: ignore[return-value]
        point = (min(len(nodes), _LARGEST_CLUSTER), sum(nodes), local)
        step, sync = self._interpolator([point])[0]
        if not np.isfinite(step):  # outside what was measured: the nearest that was
            step, sync = self._nearest(point)
        return float(step), float(sync)

    @cached_property
    def _grid(self) -> tuple[Floats, Floats]:
        """Coordinates (nodes, slots, local batch) and values of placements (means by coordinate) and scalability."""
        sums: dict[tuple[float, float, float], list[Floats]] = {}
        for name, rows in self._tables.items():
            for local, step, sync in rows:
                sums.setdefault((len(name), sum(map(int, name)), local), []).append(np.asarray((step, sync)))
        points = {key: np.mean(values, axis=0) for key, values in sums.items()}
        columns = {"num_nodes": int, "num_replicas": int, "local_bsz": int, "step_time": float, "sync_time": float}
        for row in read_table(self._scalability, columns):
            key = (row["num_nodes"], row["num_replicas"], row["local_bsz"])
            points.setdefault(key, np.asarray((row["step_time"], row["sync_time"])))
        return np.asarray(list(points), dtype=np.float64), np.asarray(list(points.values()))

    @cached_property
    def _interpolator(self) -> LinearNDInterpolator:
        return LinearNDInterpolator(*self._grid)

    def _nearest(self, point: Sequence[float]) -> Floats:
        coordinates, values = self._grid
        scale = np.maximum(coordinates.max(axis=0), 1.0)
        nearest: Floats = values[np.argmin((((coordinates - np.asarray(point)) / scale) ** 2).sum(axis=1))]
        return nearest


def _name(nodes: Nodes) -> str:
    """Placements are measured up to rotation: the smallest one names them."""
    return "".join(map(str, min(nodes[i:] + nodes[:i] for i in range(len(nodes)))))


@dataclass(frozen=True)
class Validation:
    """Epoch by epoch at one batch: work is in steps at the smallest batch."""

    progress: Floats
    grad_sqr: Floats
    grad_var: Floats


class MeasuredPhysics:
    """One model on several types of slots."""

    def __init__(
        self, name: str, times: Mapping[str, StepTimes], validation: Mapping[int, Validation], *,
        epochs: int, rescale_seconds: float, slowdown: float,
    ) -> None:  # fmt: skip
        self.name = name
        self.rescale_seconds = rescale_seconds
        self.times = times
        self._slowdown = slowdown
        self._batches = sorted(validation)
        self._validation = validation
        self.base_batch, self.max_batch = self._batches[0], self._batches[-1]
        shortest = min(len(rows.progress) for rows in validation.values())
        if shortest < epochs:
            raise UserError(f"{name}: {epochs} epochs are to be run, the validation traces hold {shortest}")
        ends = np.min([rows.progress[:epochs] for rows in validation.values()], axis=0)
        self.epoch_ends = tuple(float(end) * self.base_batch for end in ends)
        self.gradient = lru_cache(maxsize=100_000)(self._gradient)
        self._at = lru_cache(maxsize=100_000)(lambda kind, nodes, local: times[kind].at(nodes, local))

    def max_local(self, kind: str, nodes: Nodes) -> int:
        return self.times[kind].limit(nodes)

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        if nodes == (1,) and accumulation == 1 and local > self.base_batch:
            local, accumulation = -(-local // 2), 2  # one replica needs two micro-batches to measure gradient noise
        step, sync = self._at(kind, nodes, local)
        whole = step + (accumulation - 1) * (step - sync)
        return whole * self._slowdown, sync * self._slowdown

    def _gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        epoch = min(epoch, len(self.epoch_ends) - 1)
        rows = [self._validation[known] for known in self._batches]
        sqr = np.interp(batch, self._batches, [row.grad_sqr[epoch] for row in rows])
        var = np.interp(batch, self._batches, [row.grad_var[epoch] for row in rows])
        return float(sqr), float(var)


def load_model(
    folder: Path, suffixes: Mapping[str, str], *, rescale_seconds: float, slowdown: float = 1.0,
    max_local: Mapping[str, int] | None = None,
) -> MeasuredPhysics:  # fmt: skip
    """A model's physics from its folder of traces. `suffixes`: of its files, by type of slot ("" or "-aws")."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of traces; ELASTIC_DATA names the folder that holds all of them")
    validation = {}
    for path in sorted(folder.glob("validation-*.csv")):
        rows = read_table(path, {"progress": float, "grad_sqr": float, "grad_var": float})
        columns = {name: np.asarray([row[name] for row in rows]) for name in ("progress", "grad_sqr", "grad_var")}
        validation[int(path.stem.rsplit("-", 1)[1])] = Validation(**columns)
    if not validation:
        raise UserError(f"{folder} holds no validation-<batch>.csv")
    times = {kind: StepTimes(folder, suffix, (max_local or {}).get(kind)) for kind, suffix in suffixes.items()}
    return MeasuredPhysics(
        folder.name, times, validation,
        epochs=EPOCHS[folder.name], rescale_seconds=rescale_seconds, slowdown=slowdown,
    )  # fmt: skip
