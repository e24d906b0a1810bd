"""The data set as ranks read it: `step-<n>/rank-<r>.csv` (also .json, .parquet, .npy), for any step and any rank.

Steps that led to the checkpoint are there as far back as its stretch of one global batch goes; steps after it as the
job would take them if it went on so, or, below `batch=<b>,data=<d>`, at another batch or number of data ranks.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_core.domain import Layout, to_json
from elastic_core.errors import UserError
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.layout.layout import DATA, Mesh
from elastic_core.train.data.data_state import DataState
from elastic_core.view.tree_nodes import Folder, Made, Node, folder, json_file

if TYPE_CHECKING:
    import pandas as pd

NUM_LISTED = 1000  # steps that a listing shows on either side of the checkpoint; any other can be named
_STEP = re.compile(r"step-(\d{1,18})")
_RANK = re.compile(r"rank-(\d{1,9})(\.[a-z]+)")
_OTHERWISE = re.compile(r"(?:(?:batch|data)=\d{1,12})(?:,(?:batch|data)=\d{1,12})?")


def data_folder(manifest: Manifest) -> Folder | None:
    """None for a checkpoint that does not say how its data was read."""
    state = DataState.from_scalars(manifest.scalars)
    if state is None:
        return None
    stretch = _Stretch(manifest, state, Mesh.of(manifest.header.layout))
    steps, order = stretch.folder(), json_file(stretch.order)

    def child(name: str) -> Node | None:
        if name == "order.json":
            return order
        return stretch.otherwise(name).folder() if _OTHERWISE.fullmatch(name) else steps.child(name)

    return Folder(lambda: ["order.json", *steps.names()], child, steps.modified)


@dataclass(frozen=True)
class _Stretch:
    """Steps at one global batch by the ranks of one mesh."""

    manifest: Manifest
    state: DataState
    mesh: Mesh

    def folder(self) -> Folder:
        at = self.manifest.header.step
        first, last = max(self.state.since_step + 1, at - NUM_LISTED + 1), min(self.state.last_step, at + NUM_LISTED)

        def child(name: str) -> Node | None:
            matched = _STEP.fullmatch(name)
            if matched is None or not self.state.since_step < int(matched[1]) <= self.state.last_step:
                return None
            return self._step(int(matched[1]))

        return Folder(lambda: (f"step-{n:010d}" for n in range(first, last + 1)), child, self._modified)

    def otherwise(self, text: str) -> _Stretch:
        """As if the job went on from the checkpoint in another way."""
        sizes = {key: int(value) for key, _, value in (word.partition("=") for word in text.split(","))}
        header = self.manifest.header
        layout = Layout(data=sizes.get("data", self.mesh.size(DATA)))
        batch = sizes.get("batch", self.state.global_batch)
        if layout.data < 1 or batch < 1:
            raise UserError(f"{text!r} names no way to go on: a batch has at least 1 sample, a layout 1 data rank.")
        state = replace(self.state, global_batch=batch, since_step=header.step, since_samples=header.samples)
        return _Stretch(self.manifest, state, Mesh.of(layout))

    def order(self) -> dict[str, Any]:
        """What fixes the order, in the words of the manifest."""
        return {
            "order": self.manifest.scalars.get("order"),
            **to_json(self.state),
            "cursor": self.manifest.header.samples,
            "step": self.manifest.header.step,
            "last_step": self.state.last_step,
            "data_ranks": self.mesh.size(DATA),
            "ranks": self.mesh.world,
        }

    def _step(self, number: int) -> Folder:
        def child(name: str) -> Node | None:
            matched = _RANK.fullmatch(name)
            if matched is None or matched[2] not in _WRITERS or int(matched[1]) >= self.mesh.world:
                return None
            return Made(partial(self._content, number, int(matched[1]), _WRITERS[matched[2]]))

        names = [f"rank-{rank}{suffix}" for rank in range(self.mesh.world) for suffix in _WRITERS]
        return replace(folder({}, self._modified), names=lambda: names, child=child)

    def _content(self, number: int, rank: int, write: Callable[[pd.DataFrame], bytes]) -> bytes:
        return write(self._table(number, self.mesh.coordinates(rank)[DATA]))

    def _table(self, number: int, data_rank: int) -> pd.DataFrame:
        """One row a sample: its number in the job's work, its epoch, its index in the data set."""
        import pandas as pd

        plan = self.state.step(number, data_rank, self.mesh.size(DATA))
        rows: list[tuple[int, int, int]] = []
        for micro in plan.micro:
            at = micro.start
            for epoch, indices in micro.reads(self.state.dataset_samples):
                rows.extend((at + i, epoch, index) for i, index in enumerate(indices.tolist()))
                at += len(indices)
        return pd.DataFrame(rows, columns=["sample", "epoch", "index"], dtype="int64")

    @property
    def _modified(self) -> float:
        return self.manifest.header.written_at


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False).encode()


def _json(table: pd.DataFrame) -> bytes:
    return table.to_json(orient="records").encode()


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _npy(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, table["index"].to_numpy().astype("<i8"), allow_pickle=False)
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[Any], bytes]] = {".csv": _csv, ".json": _json, ".parquet": _parquet, ".npy": _npy}
