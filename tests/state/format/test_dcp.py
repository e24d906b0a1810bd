"""Plain torch.distributed.checkpoint saves into the format and loads from it, whoever wrote it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.checkpoint_format import read_manifest, read_tensors, verify, write_manifest, write_shard
from elastic_core.state.format.dcp import CheckpointReader, CheckpointWriter
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import HEADER, URI, same_bits, some_tensors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save(store: CheckpointStore, state: dict[str, Any]) -> CheckpointWriter:
    writer = CheckpointWriter(store, URI, HEADER)
    dcp.save(state, storage_writer=writer, no_dist=True)
    return writer


def load(store: CheckpointStore, state: dict[str, Any]) -> dict[str, Any]:
    dcp.load(state, storage_reader=CheckpointReader(store, URI), no_dist=True)
    return state


def test_what_dcp_saves_is_a_checkpoint_like_any_other(folder_store: CheckpointStore) -> None:
    state = {name: tensor for name, tensor in some_tensors().items() if tensor.numel()}
    writer = save(folder_store, {**state, "epoch": 3, "betas": (0.9, 0.999), "lr": float("inf")})
    assert writer.written is not None
    assert verify(folder_store, URI, writer.written.sha256).num_tensors == len(state)
    found = read_tensors(folder_store, read_manifest(folder_store, URI))
    assert all(same_bits(found[name], tensor) for name, tensor in state.items())
    target: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    loaded = load(folder_store, {**target, "epoch": 0, "betas": (0.0, 0.0), "lr": 0.0})
    assert all(same_bits(loaded[name], tensor) for name, tensor in state.items())
    assert (loaded["epoch"], loaded["betas"], loaded["lr"]) == (3, (0.9, 0.999), float("inf"))


def test_dcp_loads_what_the_platform_saved_into_another_type_too(folder_store: CheckpointStore) -> None:
    weight = torch.randn(6, 5)
    write_manifest(folder_store, URI, [write_shard(folder_store, URI, 0, {"w": weight})], HEADER, {})
    assert torch.equal(load(folder_store, {"w": torch.zeros(6, 5)})["w"], weight)
    assert torch.equal(load(folder_store, {"w": torch.zeros(6, 5).bfloat16()})["w"], weight.bfloat16())


def test_damage_is_found_and_what_is_no_data_is_refused(folder_store: CheckpointStore) -> None:
    save(folder_store, {"w": torch.arange(100.0)})
    path = Path(folder_store.url) / URI / "shard-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointException) as damaged:
        load(folder_store, {"w": torch.zeros(100)})
    error = damaged.value.failures[0][0]
    assert isinstance(error, CorruptCheckpoint)
    assert "tile [0:100] of w has CRC-32C" in str(error)
    with pytest.raises(CheckpointException) as refused:
        save(folder_store, {"where": Path("x")})
    assert "neither a tensor nor plain data" in str(refused.value.failures[0][0])
    with pytest.raises(UserError, match="leave the id out"):
        CheckpointReader(folder_store, URI).reset("somewhere")


def _whole() -> dict[str, Tensor]:
    return {"w": torch.arange(70.0).reshape(10, 7), "b": torch.arange(5, dtype=torch.int64)}


def _rank(rank: int, world: int, folder: str, saving: bool, dim: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/group-{world}-{dim}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    cuts = {"w": [Shard(dim)], "b": [Replicate()]}
    whole = _whole() if saving else {name: torch.zeros_like(tensor) for name, tensor in _whole().items()}
    state: dict[str, Any] = {name: distribute_tensor(tensor, mesh, cuts[name]) for name, tensor in whole.items()}
    store = open_store(folder)
    if saving:
        dcp.save({**state, "rank": "any"}, storage_writer=CheckpointWriter(store, URI, HEADER))
    else:
        dcp.load(state, storage_reader=CheckpointReader(store, URI))
        for name, tensor in state.items():
            assert isinstance(tensor, DTensor)
            assert torch.equal(tensor.full_tensor(), _whole()[name])
    dist.destroy_process_group()


def test_ranks_save_rows_and_other_ranks_load_columns(tmp_path: Path) -> None:
    for world, saving, dim in ((2, True, 0), (3, False, 1)):
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=_rank, args=(r, world, str(tmp_path), saving, dim)) for r in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        assert [process.exitcode for process in ranks] == [0] * world
    store = open_store(str(tmp_path))
    assert verify(store, URI).num_files == 2
    found = read_tensors(store, read_manifest(store, URI))
    assert all(same_bits(found[name], tensor) for name, tensor in _whole().items())
