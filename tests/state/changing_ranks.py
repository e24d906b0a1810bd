"""A small state under two cuts, and one rank of a change between layouts of it as a process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.host.exits import ExitCode
from elastic_core.host.rundir import RunDir
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.layout.layout import (
    AXES,
    DATA,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import holdings
from elastic_core.state.reshard.collective_load import load_collectively
from elastic_core.state.reshard.peers import Address
from elastic_core.state.reshard.rank_load import LoadGroup, OldMemories
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.parallel.group import Group
from tests.armed import arm_here

METAS = {
    "model/a": TensorMeta("float32", (31, 24)),
    "model/b": TensorMeta("bfloat16", (24, 17)),
    "optim/a/step": TensorMeta("float32", ()),
    "optim/a/exp_avg": TensorMeta("float32", (31, 24)),
}
SECRET = b"s"


def state_of(metas: Mapping[str, TensorMeta], seed: int) -> dict[str, torch.Tensor]:
    """Tensors of random bits: NaN and infinity among them."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, meta in metas.items():
        dtype = dtype_of(meta.dtype)
        raw = torch.randint(0, 256, (math.prod(meta.shape) * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        state[name] = raw.view(dtype).reshape(meta.shape)
    return state


STATE = state_of(METAS, 5)


def places(*indices: int) -> tuple[Slot, ...]:
    return tuple(Slot("node-0", index, "cpu") for index in indices)


def laid(data: int, tensor: int, slots: Sequence[Slot]) -> StateLayout:
    cuts = Placement((Split(TENSOR, 1), Split(DATA, 0)))
    placements = {name: cuts if meta.shape else Placement() for name, meta in METAS.items()}
    return StateLayout(Mesh(AXES, (1, data, tensor)), placements, tuple(slots))


def change(
    folder: str, memory: str, rank: int, generation: int, servers: dict[Slot, Address], uri: str, crash: str | None
) -> int:
    """One of three ranks that take over the state of two: from those that are served, the rest from the store.

    Exit codes as a worker's; 99 where what it holds then is not that state. Dies at `crash`.
    """
    if crash is not None:
        arm_here(crash)
    store, old = open_store(f"{folder}/store"), laid(2, 1, places(0, 1))
    manifest = read_manifest(store, uri)
    group = Group.form(RunDir(Path(folder) / "run"), rank, 3, torch.device("cpu"), generation)
    held = {slot: held for slot, held in holdings(old, METAS).items() if slot in servers}
    new = laid(3, 1, places(5, 6, 7))
    room = [shared.room(Path(memory))] * 3
    load_group = LoadGroup(rank=rank, slots=new.slots, exchange=group.gather_bytes, room=room, folder=Path(memory))
    try:
        loaded = load_collectively(
            store, manifest, partition(new, METAS), load_group, print,
            OldMemories(boxes=held, addresses=servers, secret=SECRET),
        )  # fmt: skip
    except InfrastructureError:
        return ExitCode.INFRASTRUCTURE
    for name, box in partition(new, METAS)[rank].items():
        found, wanted = (
            one.contiguous().reshape(-1).view(torch.uint8) for one in (loaded.tensors[name], STATE[name][box.slices()])
        )
        assert torch.equal(found, wanted), name
    group.close()
    return 0
